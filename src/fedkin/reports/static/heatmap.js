// Who shaped whom: a heat map whose rows and columns can be put in another order.

(function influence() {
  const shown = methodOptions((m) => m.influence);
  if (!shown.length) { byId("influence").hidden = true; return; }
  const canvas = byId("influence-canvas"), readout = byId("influence-readout");
  const blocks = methods[Number(shown[0][0])].influence.size < N;
  const state = { method: Number((shown.find(([k]) => methods[k].graph !== null && !methods[k].alone) || shown.find(([k]) => !methods[k].alone) || shown[0])[0]), order: "cluster", cell: null };
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const cache = new Map();
  function matrix() {
    const key = state.method + (blocks ? state.order : "");
    if (!cache.has(key)) cache.set(key, bytes(methods[state.method].influence[blocks ? state.order : "given"]));
    return cache.get(key);
  }
  const orders = [["cluster", "By cluster"], ["given", "As given"]];
  const anyGain = methods.find((m) => m.gain);
  if (!blocks && anyGain) orders.push(["gain", "By gain"]);
  const identity = units.names.map((_, k) => k);
  function order() {
    if (blocks || state.order === "given") return identity.slice(0, methods[state.method].influence.size);
    if (state.order === "cluster") return sortedBy(units.cluster);
    return sortedBy((methods[state.method].gain || anyGain.gain).map((g) => (known(g) ? -g : Infinity)));
  }
  const controls = byId("influence-controls");
  controls.append(segments("Order", orders, state.order, (v) => { state.order = v; state.cell = null; draw(); }));
  if (shown.length > 1) controls.append(selector("Method", shown, String(state.method), (v) => { state.method = Number(v); draw(); }));

  let cell = 1, left = 0, topEdge = 0, rank = [];
  function draw() {
    const data = methods[state.method].influence, size = data.size, values = matrix();
    const narrow = canvas.parentElement.clientWidth;
    const longest = size <= 40 && !blocks ? Math.min(Math.max(...units.names.map((n) => n.length)) * 6.2 + 8, narrow * 0.3) : 0;
    const side = Math.min(narrow - longest, 520);
    const [c, width] = sized(canvas, Math.round(side) + 2);
    rank = order(); cell = side / size; left = Math.max(longest, (width - side) / 2); topEdge = 1;
    const stops = ramp();
    for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) {
      c.fillStyle = mix(stops, values[rank[i] * size + rank[j]] / 255);
      const [x, y] = [Math.floor(left + j * cell), Math.floor(topEdge + i * cell)];
      c.fillRect(x, y, Math.ceil(left + (j + 1) * cell) - x, Math.ceil(topEdge + (i + 1) * cell) - y);
    }
    if (longest) {
      c.font = "11px " + css("--sans"); c.textAlign = "right"; c.textBaseline = "middle"; c.fillStyle = css("--soft");
      if (cell >= 11) rank.forEach((k, i) => c.fillText(shorten(c, units.names[k], longest - 8), left - 6, topEdge + (i + 0.5) * cell));
    }
    if (state.order === "cluster" && !blocks) borders(c, size, side);
    if (state.cell) {
      c.strokeStyle = css("--bad"); c.lineWidth = 2;
      c.strokeRect(left + state.cell[1] * cell, topEdge + state.cell[0] * cell, cell, cell);
    }
    byId("influence-about").textContent = `${methods[state.method].label}: each row shows whose updates are in that client's model; a row sums to 100 %.` + (blocks ? ` Cells are means over about ${Math.round(N / size)} × ${Math.round(N / size)} clients.` : "") + (state.order === "cluster" ? ` Clusters: ${units.cluster_source}.` : "");
    byId("influence-legend").replaceChildren(rampLegend(stops, "0 %", share(data.max)), "(square-root scale)");
    canvas.setAttribute("aria-label", `Influence of ${size} by ${size} ${blocks ? "blocks of clients" : "clients"}. Arrow keys move from cell to cell.`);
  }
  function borders(c, size, side) {
    c.strokeStyle = css("--faint"); c.lineWidth = 1;
    for (let i = 1; i < size; i++) if (units.cluster[rank[i]] !== units.cluster[rank[i - 1]]) {
      const [x, y] = [Math.round(left + i * cell) + 0.5, Math.round(topEdge + i * cell) + 0.5];
      c.beginPath(); c.moveTo(left, y); c.lineTo(left + side, y); c.moveTo(x, topEdge); c.lineTo(x, topEdge + side); c.stroke();
    }
  }
  function read(i, j) {
    const data = methods[state.method].influence, value = (matrix()[rank[i] * data.size + rank[j]] / 255) ** 2 * data.max;
    const name = (k) => (blocks ? `block ${k + 1}` : units.names[rank[k]]);
    return i === j && !blocks ? `${name(i)}: ${share(value)} of its model is its own work` : `${name(i)} owes ${share(value)} of its model to ${name(j)}`;
  }
  function point(i, j) { state.cell = [i, j]; readout.textContent = read(i, j); draw(); }
  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect(), size = methods[state.method].influence.size;
    const i = Math.floor((event.clientY - frame.top - topEdge) / cell), j = Math.floor((event.clientX - frame.left - left) / cell);
    if (i < 0 || j < 0 || i >= size || j >= size) { hideTip(); return; }
    showTip(event.clientX, event.clientY, read(i, j));
    if (!state.cell || state.cell[0] !== i || state.cell[1] !== j) point(i, j);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const size = methods[state.method].influence.size, [i, j] = state.cell || [0, 0];
    point(Math.min(Math.max(i + step[0], 0), size - 1), Math.min(Math.max(j + step[1], 0), size - 1));
  });
  drawn(draw);
})();

function shorten(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  let text = name;
  while (text.length > 1 && context.measureText(text + "…").width > room) text = text.slice(0, -1);
  return text + "…";
}
