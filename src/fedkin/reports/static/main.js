// The theme, the width, the printer.

(function theme() {
  const button = byId("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  function apply(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    redraw();
  }
  button.addEventListener("click", () => { chosen = !isDark(); apply(chosen); });
  system.addEventListener("change", () => { if (chosen === null) apply(system.matches); });
  apply(system.matches);

  // Paper is white, and cannot be unfolded.
  let before = null;
  addEventListener("beforeprint", () => {
    before = isDark();
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
    apply(false);
  });
  addEventListener("afterprint", () => apply(before));

  // A section without its neighbour takes the whole row.
  document.querySelectorAll(".two").forEach((row) => {
    const open = [...row.children].filter((section) => !section.hidden);
    if (open.length === 1) { open[0].classList.add("alone"); redraw(); }
    row.hidden = open.length === 0;
  });

  const specialists = byId("specialists");
  specialists.hidden = specialists.querySelector(".two").hidden;
  specialists.addEventListener("toggle", redraw); // plots have no width before they are seen

  let width = document.documentElement.clientWidth;
  new ResizeObserver(() => {
    const now = document.documentElement.clientWidth;
    if (now !== width) { width = now; redraw(); }
  }).observe(document.documentElement);
})();
