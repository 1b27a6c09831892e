// The comparison table: sorted by its heads, best values marked.

(function compareTable() {
  const table = byId("table"), body = table.tBodies[0];
  const lower = new Set(["std", "over_seeds", "bytes", "seconds", ...(metric.larger ? [] : ["deployed", "pre", "post", "worst5", "best5"])]);
  table.querySelectorAll(".dot").forEach((dot) => dot.style.setProperty("--c", methods[dot.dataset.method].colour));
  table.querySelectorAll('td[data-key="gain"]').forEach((cell) => {
    if (/[1-9]/.test(cell.textContent)) cell.classList.add(Number(cell.dataset.value) < 0 ? "down" : "up");
  });

  for (const key of ["deployed", "pre", "post", "worst5", "best5", "gain"]) {
    const cells = [...body.querySelectorAll(`td[data-key="${key}"]`)].filter((cell) => cell.dataset.value !== "");
    const values = cells.map((cell) => Number(cell.dataset.value));
    const top = lower.has(key) ? Math.min(...values) : Math.max(...values);
    if (new Set(values).size > 1) cells.forEach((cell, k) => cell.classList.toggle("best", values[k] === top));
  }

  const value = (row, column) => row.cells[column].dataset.value;
  function sort(head, direction) {
    const column = head.cellIndex;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return direction * (column === 0 ? x.localeCompare(y) : Number(x) - Number(y));
    });
    body.append(...rows);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    byId("sorted").textContent = `Sorted by ${head.textContent.trim()}, ${direction > 0 ? "ascending" : "descending"}`;
  }
  for (const head of table.tHead.rows[0].cells) {
    head.querySelector("button").addEventListener("click", () => {
      const first = head.cellIndex === 0 || lower.has(head.dataset.key) ? 1 : -1;
      const now = { ascending: 1, descending: -1 }[head.getAttribute("aria-sort")];
      sort(head, now ? -now : first);
    });
  }
  const deployed = table.tHead.querySelector('[data-key="deployed"]');
  sort(deployed, metric.larger ? -1 : 1);
})();
