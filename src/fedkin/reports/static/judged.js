// How the deployed models' probabilities do on each client's test samples: ROC and calibration.

(function judged() {
  const shown = methodOptions((m) => m.roc || m.calibration);
  if (!shown.length) { byId("roc").hidden = byId("calibration").hidden = true; return; }
  const state = { method: shown.some(([k]) => Number(k) === page.best) ? page.best : Number(shown[0][0]), unit: null };
  const width = page.grid.length, bins = 10;
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const binary = units.classes.length === 2;
  const positive = binary ? units.classes[1] : null;
  const named = (k) => methods[k].curves_of;
  const rocOf = (m, k) => { const row = bytes(m.roc.clients).slice(k * width, (k + 1) * width); return row[0] === 255 ? null : [...row].map((b) => b / 250); };
  const binsOf = (m, k) => { const rows = [...bytes(m.calibration.clients).slice(3 * bins * k, 3 * bins * (k + 1))].map((b) => b / 250); return [0, 1, 2].map((r) => rows.slice(r * bins, (r + 1) * bins)); };

  for (const name of ["roc", "calibration"]) {
    const box = byId(`${name}-controls`);
    if (shown.length > 1) box.append(selector("Method", shown, String(state.method), (v) => { state.method = Number(v); draw(); }));
    box.append(selector("Client", [["", "all"], ...units.names.slice(0, named(state.method)).map((n, k) => [String(k), n])], "", (v) => { state.unit = v === "" ? null : Number(v); draw(); }));
  }
  const lists = () => ["roc", "calibration"].flatMap((name) => [...byId(`${name}-controls`).querySelectorAll("select")]);

  function frame(box, label, words) {
    const side = Math.max(200, Math.min(box.clientWidth, 430)), pad = { left: 64, right: 12, top: 10, bottom: 44 };
    const X = scale(0, 1, pad.left, side - pad.right), Y = scale(0, 1, side - pad.bottom, pad.top);
    const root = svg("svg", { viewBox: `0 0 ${side} ${side}`, height: side, role: "img", "aria-label": label, style: `max-width:${side}px;margin:0 auto` });
    for (const t of [0, 0.25, 0.5, 0.75, 1]) root.append(
      svg("line", { class: "grid", x1: X(0), x2: X(1), y1: Y(t), y2: Y(t) }), svg("line", { class: "grid", x1: X(t), x2: X(t), y1: Y(0), y2: Y(1) }),
      svg("text", { x: X(0) - 8, y: Y(t) + 4, "text-anchor": "end" }, 100 * t + " %"), svg("text", { x: X(t), y: Y(0) + 17, "text-anchor": "middle" }, 100 * t + " %"));
    root.append(svg("line", { x1: X(0), y1: Y(0), x2: X(1), y2: Y(1), stroke: "var(--faint)", "stroke-dasharray": "3 4" }),
      svg("text", { x: (X(0) + X(1)) / 2, y: side - 6, "text-anchor": "middle" }, words[0]),
      svg("text", { transform: `translate(12 ${(Y(0) + Y(1)) / 2}) rotate(-90)`, "text-anchor": "middle" }, words[1]));
    box.replaceChildren(root);
    return [root, X, Y];
  }
  const line = (root, points, colour, more) => root.append(svg("path", { d: path(points), fill: "none", stroke: colour, "stroke-linejoin": "round", ...more }));
  const faint = () => ({ "stroke-width": 1.2, "stroke-opacity": state.unit === null ? Math.max(0.12, Math.min(0.5, 6 / N)) : 0.1, class: "client" });
  /** A client's own line: pointing at it names it. */
  function own(root, points, colour, k, words) {
    line(root, points, colour, faint());
    const reach = svg("path", { d: path(points), fill: "none", stroke: "transparent", "stroke-width": 9 });
    reach.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, make("b", {}, units.names[k]), words));
    reach.addEventListener("pointerleave", hideTip);
    return reach;
  }

  function roc(m) {
    byId("roc").hidden = !m.roc;
    if (!m.roc) return;
    const areas = m.roc.area.filter(known), [low, high] = extent(areas), reaches = [];
    const whose = positive ? `“${positive}” is what is looked for` : "each class against the rest, averaged";
    byId("roc-about").textContent = `${m.label}, ROC of ${areas.length} ${areas.length === 1 ? "client" : "clients"} on test samples; ${whose}. Thick: their mean. A model that guesses follows the diagonal.` + (areas.length < N ? ` ${N - areas.length} have one class among their test samples, or do not tell.` : "");
    const [root, X, Y] = frame(byId("roc-plot"), `ROC curves of ${m.label}: mean AUROC ${percentage(areas.reduce((a, b) => a + b, 0) / areas.length)}`, ["false alarms", "found"]);
    const points = (curve) => [[X(0), Y(0)], ...curve.map((y, i) => [X(page.grid[i]), Y(y)])];
    for (let k = 0; k < named(state.method); k++) {
      const curve = rocOf(m, k);
      if (curve) reaches.push(own(root, points(curve), m.colour, k, tipRow("AUROC", percentage(m.roc.area[k]))));
    }
    const chosen = state.unit === null ? null : rocOf(m, state.unit);
    line(root, points(m.roc.mean), m.colour, { "stroke-width": chosen ? 1.5 : 3, "stroke-dasharray": chosen ? "5 4" : null, class: "mean" });
    if (chosen) line(root, points(chosen), m.colour, { "stroke-width": 3, class: "chosen" });
    root.append(...reaches);
    byId("roc-readout").textContent = state.unit === null
      ? `AUROC ${percentage(areas.reduce((a, b) => a + b, 0) / areas.length)} on average` + (areas.length > 1 ? `, ${percentage(low)} to ${percentage(high)}` : "")
      : `${units.names[state.unit]}: ${chosen ? `AUROC ${percentage(m.roc.area[state.unit])}` : "no curve"}`;
  }

  function calibration(m) {
    byId("calibration").hidden = !m.calibration;
    if (!m.calibration) return;
    const forecast = positive ? `the probability of “${positive}”` : "the probability of the predicted class", reaches = [];
    byId("calibration-about").textContent = `${m.label}: ${forecast} against how often it came true, on test samples. On the diagonal 70 % means seven in ten; below it the models promise too much. Larger discs stand for more samples.`;
    const [root, X, Y] = frame(byId("calibration-plot"), `Calibration of ${m.label}`, ["forecast", "came true"]);
    const points = ([share, mean, seen]) => mean.map((x, b) => [X(x), Y(seen[b]), share[b]]).filter(([, , s]) => s > 0.002);
    for (let k = 0; k < named(state.method); k++) {
      const told = binsOf(m, k);
      if (told[0].some((s) => s > 0)) reaches.push(own(root, points(told), m.colour, k, tipRow("off by, on average", percentage(gap(told)))));
    }
    const chosen = state.unit === null ? m.calibration.pooled : binsOf(m, state.unit), drawn = points(chosen);
    line(root, drawn, m.colour, { "stroke-width": 2.6, class: "mean" });
    drawn.forEach(([x, y, s]) => root.append(svg("circle", { cx: x, cy: y, r: 3 + 16 * Math.sqrt(s) * 0.6, fill: m.colour, "fill-opacity": 0.75, stroke: "var(--surface)" }, svg("title", {}, `${share(s)} of the samples`))));
    root.append(...reaches);
    const who = state.unit === null ? "All samples together" : units.names[state.unit];
    byId("calibration-readout").textContent = drawn.length ? `${who}: forecasts are off by ${percentage(gap(chosen)).replace(" %", "")} points on average` : `${who}: no test samples, or not told`;
  }
  /** Σ share · |came true − forecast|. */
  const gap = ([share, mean, seen]) => share.reduce((sum, s, b) => sum + s * Math.abs(seen[b] - mean[b]), 0);

  function draw() {
    for (const list of lists()) list.value = list.getAttribute("aria-label") === "Method" ? String(state.method) : state.unit === null ? "" : String(state.unit);
    const m = methods[state.method];
    roc(m); calibration(m);
  }
  drawn(draw);
})();
