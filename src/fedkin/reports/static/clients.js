// Client by client: gains as a dumbbell plot (or bars, when there are many), and the labels each client holds.

(function gains() {
  const withGain = methodOptions((m) => m.gain), all = methodOptions(() => true);
  const useGain = withGain.length > 0;
  const offered = useGain ? withGain : all;
  const mean = (list) => list.filter(known).reduce((a, b) => a + b, 0) / Math.max(list.filter(known).length, 1);
  const best = useGain ? offered.reduce((a, b) => (mean(methods[b[0]].gain) > mean(methods[a[0]].gain) ? b : a)) : offered[0];
  const state = { method: Number(best[0]), sort: "gain" };
  const controls = byId("gains-controls");
  controls.append(segments("Sort by", [["gain", useGain ? "Gain" : "Change"], ["samples", "Samples"], ["name", "Name"]], "gain", (v) => { state.sort = v; draw(); }));
  if (offered.length > 1) controls.append(selector("Method", offered, String(state.method), (v) => { state.method = Number(v); draw(); }));

  /** Start, end and difference (positive = better) for every unit: from alone to the method, or from before to after. */
  function pairs() {
    const m = methods[state.method];
    const to = useGain ? m.values.deployed : m.values.post, sign = metric.larger ? 1 : -1;
    const from = useGain ? m.values.deployed.map((v, k) => (known(m.gain[k]) ? v - sign * m.gain[k] : null)) : m.values.pre;
    return { from, to, gain: useGain ? m.gain : to.map((v, k) => (known(v) && known(from[k]) ? sign * (v - from[k]) : null)) };
  }
  function draw() {
    const { from, to, gain } = pairs(), m = methods[state.method];
    const keys = { gain: gain.map((g) => (known(g) ? -g : Infinity)), samples: units.samples.map((s) => -s), name: null }[state.sort];
    const order = keys ? sortedBy(keys) : units.names.map((_, k) => k).sort((a, b) => units.names[a].localeCompare(units.names[b], "en", { numeric: true }));
    const better = gain.filter((g) => g > 1e-12).length, worse = gain.filter((g) => g < -1e-12).length;
    const what = useGain ? `from training alone (open) to ${m.label} (filled)` : `${m.label}: before (open) and after (filled) local training`;
    byId("gains-about").textContent = `${metric.label[0].toUpperCase() + metric.label.slice(1)} per ${unitWord}, ${what}. Blue is better (${better}), orange worse (${worse}).`;
    const box = byId("gains-plot");
    box.replaceChildren(N <= 70 ? dumbbells(box, order, from, to, gain) : bars(box, order, gain, from, to));
  }
  const colour = (g) => (!known(g) || Math.abs(g) <= 1e-12 ? "var(--faint)" : g > 0 ? "var(--good)" : "var(--bad)");
  const tell = (event, k, from, to, gain) => showTip(event.clientX, event.clientY, make("b", {}, units.names[k]), tipRow(useGain ? "alone" : "before", amount(from[k])), tipRow(useGain ? methods[state.method].label : "after", amount(to[k])), tipRow("gain", change(gain[k])), tipRow("samples", units.samples[k].toLocaleString("en")));

  function dumbbells(box, order, from, to, gain) {
    const width = box.clientWidth, row = 22, top = 6, height = top + order.length * row + 32;
    const left = Math.min(Math.max(...units.names.map((n) => n.length)) * 6.8 + 14, width * 0.32), right = width < 500 ? 18 : 86;
    let [low, high] = extent([...from, ...to]);
    const room = (high - low || 1) * 0.04;
    low -= room; high += room;
    if (percent) { low = Math.max(low, -0.005); high = Math.min(high, 1.005); }
    const X = scale(low, high, left, width - right);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": byId("gains-about").textContent });
    for (const t of ticks(low, high, width / 120)) root.append(
      svg("line", { class: "grid", x1: X(t), x2: X(t), y1: top, y2: height - 26 }),
      svg("text", { x: X(t), y: height - 8, "text-anchor": "middle" }, amount(t).replace(".0 %", " %")));
    order.forEach((k, i) => {
      const y = top + (i + 0.5) * row, g = svg("g", { class: "client" });
      g.append(svg("rect", { x: 0, y: y - row / 2, width, height: row, fill: "transparent" }));
      const label = units.names[k], most = Math.round((left - 14) / 6.8);
      g.append(svg("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, label.length > most ? label.slice(0, Math.max(most - 1, 1)) + "…" : label));
      if (known(from[k]) && known(to[k])) g.append(
        svg("line", { x1: X(from[k]), x2: X(to[k]), y1: y, y2: y, stroke: colour(gain[k]), "stroke-width": 3, "stroke-linecap": "round", "stroke-opacity": 0.55 }),
        svg("circle", { cx: X(from[k]), cy: y, r: 4.2, fill: "var(--surface)", stroke: "var(--alone)", "stroke-width": 1.8 }),
        svg("circle", { cx: X(to[k]), cy: y, r: 5, fill: colour(gain[k]) }));
      if (right > 40) g.append(svg("text", { x: width - 4, y: y + 4, "text-anchor": "end", style: `fill:${colour(gain[k])}` }, change(gain[k])));
      g.addEventListener("pointermove", (event) => tell(event, k, from, to, gain));
      g.addEventListener("pointerleave", hideTip);
      root.append(g);
    });
    return root;
  }

  function bars(box, order, gain, from, to) {
    const width = box.clientWidth, height = 320, pad = { left: 58, right: 8, top: 10, bottom: 30 };
    let [low, high] = extent([...gain, 0]);
    const X = scale(0, N, pad.left, width - pad.right), Y = scale(low * 1.05, high * 1.05 || 1, height - pad.bottom, pad.top);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": byId("gains-about").textContent });
    for (const t of ticks(low, high, 5)) root.append(svg("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: Y(t), y2: Y(t) }),
      svg("text", { x: pad.left - 8, y: Y(t) + 4, "text-anchor": "end" }, change(t).replace(" points", "").replace(".0", "")));
    const wide = X(1) - X(0), each = wide > 3 ? wide - 1 : wide;
    const outline = (keep) => order.map((k, i) => (known(gain[k]) && keep(gain[k]) ? `M${X(i).toFixed(2)} ${Y(0).toFixed(2)}h${each.toFixed(2)}V${Y(gain[k]).toFixed(2)}h${(-each).toFixed(2)}Z` : "")).join("");
    root.append(svg("path", { d: outline((g) => g > 0), fill: "var(--good)" }), svg("path", { d: outline((g) => g < 0), fill: "var(--bad)" }),
      svg("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: Y(0), y2: Y(0) }),
      svg("text", { x: (pad.left + width) / 2, y: height - 6, "text-anchor": "middle" }, `${N} ${unitWord}s, sorted`));
    root.addEventListener("pointermove", (event) => {
      const i = Math.floor(((event.clientX - root.getBoundingClientRect().left - pad.left) / (width - pad.left - pad.right)) * N);
      if (i >= 0 && i < N) tell(event, order[i], from, to, gain); else hideTip();
    });
    root.addEventListener("pointerleave", hideTip);
    return root;
  }
  drawn(draw);
})();

(function labelMix() {
  const section = byId("labels");
  if (!units.labels) { section.hidden = true; return; }
  const canvas = byId("labels-canvas"), readout = byId("labels-readout");
  const state = { order: "cluster", height: "share", unit: null };
  byId("labels-controls").append(
    segments("Height", [["share", "Share"], ["count", "Samples"]], "share", (v) => { state.height = v; draw(); }),
    segments("Order", [["cluster", "By cluster"], ["given", "As given"]], "cluster", (v) => { state.order = v; draw(); }));
  const longest = Math.max(...units.names.map((n) => n.length)) * 6.2 + 8;
  const totals = units.labels.map((row) => row.reduce((a, b) => a + b, 0));
  const main = units.labels.map((row) => row.indexOf(Math.max(...row)));
  let order = [], left = 46, wide = 1;
  function draw() {
    const room = canvas.parentElement.clientWidth;
    const named = (room - left) / N >= 13 ? Math.min(longest, room * 0.3) : 0, below = 26 + (named ? named * 0.72 + 8 : 0);
    const [c, width, height] = sized(canvas, Math.round(Math.max(254, Math.min(404, room * 0.74)) + below));
    const top = 8, bottom = height - below, most = state.height === "share" ? 1 : Math.max(...totals);
    order = state.order === "given" ? units.names.map((_, k) => k) : units.names.map((_, k) => k).sort((a, b) => units.cluster[a] - units.cluster[b] || main[a] - main[b] || a - b);
    wide = (width - left - 4) / N;
    c.font = "12px " + css("--sans"); c.fillStyle = css("--soft"); c.textAlign = "right"; c.textBaseline = "middle";
    for (const t of ticks(0, most, 4)) {
      const y = bottom - (t / most) * (bottom - top);
      c.fillText(state.height === "share" ? Math.round(100 * t) + " %" : t.toLocaleString("en"), left - 7, y);
      c.fillRect(left - 4, y, 4, 1);
    }
    const gap = wide > 5 ? 1.5 : 0;
    order.forEach((k, i) => {
      let y = bottom;
      const whole = state.height === "share" ? totals[k] || 1 : most;
      units.labels[k].forEach((count, label) => {
        const h = (count / whole) * (bottom - top);
        c.fillStyle = category(label, units.classes.length);
        c.fillRect(left + i * wide, y - h, Math.max(wide - gap, 0.6), h);
        y -= h;
      });
      if (k === state.unit) { c.strokeStyle = css("--ink"); c.lineWidth = 2; c.strokeRect(left + i * wide, y, wide - gap, bottom - y); }
    });
    c.fillStyle = css("--soft"); c.font = "11px " + css("--sans");
    if (named) order.forEach((k, i) => slanted(c, shorten(c, units.names[k], named - 8), left + (i + 0.5) * wide, bottom + 6));
    c.textAlign = "center"; c.font = "12px " + css("--sans");
    c.fillText(`${N} ${unitWord}s`, left + (width - left) / 2, height - 10);
    byId("labels-about").textContent = `Training samples per class; one column per ${unitWord}.`;
    byId("labels-legend").replaceChildren(...(units.classes.length <= 24 ? units.classes.map((name, k) => swatch(category(k, units.classes.length), name)) : [rampLegend(viridis, units.classes[0], units.classes.at(-1))]));
    canvas.setAttribute("aria-label", `Labels of ${N} ${unitWord}s. Left and right arrow keys move from one to the next.`);
  }
  const words = (k) => `${units.names[k]}: ${totals[k].toLocaleString("en")} samples, ` + units.labels[k].map((n, label) => [n, label]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 4).map(([n, label]) => `${units.classes[label]} ${share(n / (totals[k] || 1))}`).join(", ");
  function point(i) { if (state.unit === order[i]) return; state.unit = order[i]; readout.textContent = words(order[i]); draw(); }
  canvas.addEventListener("pointermove", (event) => {
    const i = Math.floor((event.clientX - canvas.getBoundingClientRect().left - left) / wide);
    if (i < 0 || i >= N) { hideTip(); return; }
    showTip(event.clientX, event.clientY, words(order[i]));
    point(i);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    point(Math.min(Math.max(order.indexOf(state.unit) + step, 0), N - 1));
  });
  drawn(draw);
})();
