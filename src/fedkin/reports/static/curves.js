// Line charts over rounds: learning curves with bands, and total variation.

/** Lines over rounds. `lines`: {label, colour, dash, x, y, band: [low, high] or null}; `text` formats a value. */
function lineChart(box, lines, { text, height = 320, label, log = false }) {
  const width = box.clientWidth, pad = { left: 52, right: 14, top: 12, bottom: 38 };
  const shownY = (y) => (log ? Math.log10(Math.max(y, 1e-12)) : y);
  const [x0, x1] = extent(lines.flatMap((l) => l.x));
  let [y0, y1] = extent(lines.flatMap((l) => [...l.y, ...(l.band ? [...l.band[0], ...l.band[1]] : [])]).filter((v) => known(v) && (!log || v > 0)).map(shownY));
  const room = (y1 - y0 || Math.abs(y1) || 1) * 0.05;
  y0 -= room; y1 += room;
  if (text === percentage) { y0 = Math.max(y0, 0); y1 = Math.min(y1, 1.005); }
  const X = scale(x0, x1, pad.left, width - pad.right), Y0 = scale(y0, y1, height - pad.bottom, pad.top), Y = (y) => Y0(shownY(y));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  for (const t of ticks(y0, y1, height / 60)) {
    if (log && !Number.isInteger(t) && y1 - y0 > 2) continue;
    root.append(svg("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: Y0(t), y2: Y0(t) }),
      svg("text", { x: pad.left - 8, y: Y0(t) + 4, "text-anchor": "end" }, text(log ? 10 ** t : t).replace(".0 %", " %")));
  }
  for (const t of ticks(x0, x1, width / 90).filter(Number.isInteger))
    root.append(svg("text", { x: X(t), y: height - pad.bottom + 18, "text-anchor": "middle" }, String(t)));
  root.append(svg("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }),
    svg("text", { x: (pad.left + width - pad.right) / 2, y: height - 3, "text-anchor": "middle" }, "round"));
  for (const l of lines) if (l.band) {
    const side = (end) => l.x.map((x, k) => [X(x), known(end[k]) ? Y(end[k]) : null]);
    const up = side(l.band[1]), down = side(l.band[0]).reverse();
    root.append(svg("path", { d: path([...up, ...down]) + "Z", fill: l.colour, "fill-opacity": 0.16, stroke: l.colour, "stroke-opacity": 0.4, "stroke-width": 0.8, class: "band" }));
  }
  for (const l of lines) {
    root.append(svg("path", { d: path(l.x.map((x, k) => [X(x), known(l.y[k]) ? Y(l.y[k]) : null])), fill: "none", stroke: l.colour, "stroke-width": 2.2, "stroke-dasharray": l.dash || null, "stroke-linejoin": "round", class: "line" }));
    if (l.x.length === 1 && known(l.y[0])) root.append(svg("circle", { cx: X(l.x[0]), cy: Y(l.y[0]), r: 4, fill: l.colour }));
  }
  const cursor = svg("line", { class: "axis", y1: pad.top, y2: height - pad.bottom, visibility: "hidden" });
  root.append(cursor);
  const rounds = [...new Set(lines.flatMap((l) => l.x))].sort((a, b) => a - b);
  root.addEventListener("pointermove", (event) => {
    const frame = root.getBoundingClientRect(), at = event.clientX - frame.left;
    const round = rounds.reduce((near, r) => (Math.abs(X(r) - at) < Math.abs(X(near) - at) ? r : near), rounds[0]);
    setAll(cursor, { x1: X(round), x2: X(round), visibility: "visible" });
    const values = lines.map((l) => [l, l.y[l.x.indexOf(round)]]).filter(([, y]) => known(y)).sort((a, b) => b[1] - a[1]);
    showTip(event.clientX, event.clientY, make("b", {}, `round ${round}`), ...values.slice(0, 12).map(([l, y]) => tipRow(l.label, text(y), resolve(l.colour))));
  });
  root.addEventListener("pointerleave", () => { hideTip(); cursor.setAttribute("visibility", "hidden"); });
  box.replaceChildren(root);
}

const lineSample = (m) => svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: m.colour, "stroke-width": 2.6, "stroke-dasharray": m.dash || null }));

(function learningCurves() {
  const names = Object.keys(methods[0].curves).filter((name) => methods.some((m) => m.curves[name].pre));
  const rounds = new Set(methods.flatMap((m) => names.flatMap((name) => ["pre", "post"].flatMap((when) => m.curves[name]?.[when]?.round ?? []))));
  if (rounds.size < 2) { byId("curves").hidden = true; return; }
  const several = methods.some((m) => m.runs > 1);
  const anyPost = methods.some((m) => m.curves[names[0]]?.post);
  const deployedAfter = methods.filter((m) => m.deploys === "trained").length * 2 >= methods.length;
  const state = { name: names[0], when: anyPost && deployedAfter ? "post" : "pre", band: several ? "seeds" : "clients", off: new Set() };
  const drawnMethods = methods.map((m, k) => k).filter((k) => methods[k].curves[names[0]]?.[state.when]?.round.length > 1);
  const alone = methods.findIndex((m) => m.alone);
  // The bands of many methods would merge into one block: that of one is shown, at first of the best.
  state.of = drawnMethods.length <= 2 ? "all" : String(ranked(drawnMethods).find((k) => k !== alone) ?? drawnMethods[0]);
  const bands = [...(several ? [["seeds", "Seeds"]] : []), ["clients", "Clients"], ["none", "No band"]];
  const readable = (name) => name.replaceAll("_", " ");
  const controls = byId("curves-controls");
  if (anyPost) controls.append(segments("Local training", [["pre", "Before"], ["post", "After"]], state.when, (v) => { state.when = v; draw(); }));
  controls.append(segments("Band", bands, state.band, (v) => { state.band = v; draw(); }));
  if (drawnMethods.length > 2) controls.append(selector("of", [["all", "all methods"], ...drawnMethods.map((k) => [String(k), methods[k].label])], state.of, (v) => { state.of = v; draw(); }));
  if (names.length > 1) controls.append(selector("Metric", names.map((n) => [n, readable(n)]), state.name, (v) => { state.name = v; draw(); }));

  const legend = byId("curves-legend");
  methods.forEach((m, k) => {
    const button = make("button", { type: "button", "aria-pressed": "true", onclick: () => {
      if (state.off.has(k)) state.off.delete(k); else state.off.add(k);
      button.setAttribute("aria-pressed", String(!state.off.has(k)));
      draw();
    } }, lineSample(m), m.label);
    legend.append(button);
  });

  function draw() {
    const lines = methods.map((m, k) => {
      const c = m.curves[state.name]?.[state.when];
      return c && !state.off.has(k) ? { label: m.label, colour: m.colour, dash: m.dash, x: c.round, y: c.mean, band: (["all", String(k)].includes(state.of) && c[state.band]) || null } : null;
    }).filter(Boolean);
    const when = state.when === "pre" ? "before local training, as received" : "after local training";
    const band = { seeds: " The band spans the seeds.", clients: " The band spans the 10th to the 90th percentile client.", none: "" }[state.band];
    const whose = state.of === "all" || state.band === "none" ? "" : ` of ${methods[state.of].label}`;
    byId("curves-about").textContent = `Mean ${readable(state.name)} over clients, ${when}.${band.replace("The band", `The band${whose}`)}`;
    const text = state.name === metric.name ? amount : metric.percentages.includes(state.name) ? percentage : plain;
    lineChart(byId("curves-plot"), lines, { text, label: `Learning curves: ${readable(state.name)} by round for ${lines.map((l) => l.label).join(", ")}` });
  }
  drawn(draw);
})();

(function totalVariation() {
  const shown = methods.filter((m) => m.variation);
  if (!shown.length) { byId("variation").hidden = true; return; }
  byId("variation-legend").append(...shown.map((m) => make("span", { class: "swatch" }, lineSample(m), m.label)));
  drawn(() => lineChart(byId("variation-plot"), shown.map((m) => ({ label: m.label, colour: m.colour, dash: m.dash, x: m.variation.round, y: m.variation.value })),
    { text: plain, log: true, height: 300, label: "Total variation of the clients' models over the graph, by round" }));
})();
