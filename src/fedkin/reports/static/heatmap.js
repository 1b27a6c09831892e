// Who shaped whom, or who helps whom: a heat map whose rows and columns can be put in another order.

(function influence() {
  const shown = methodOptions((m) => m.influence || m.kin);
  if (!shown.length) { byId("influence").hidden = true; return; }
  const canvas = byId("influence-canvas"), readout = byId("influence-readout");
  const first = methods[Number(shown[0][0])];
  const blocks = (first.influence || first.kin).size < N;
  const best = shown.find(([k]) => Number(k) === page.best) || shown.find(([k]) => methods[k].graph !== null && !methods[k].alone) || shown.find(([k]) => !methods[k].alone) || shown[0];
  const state = { what: methods[best[0]].kin ? "kin" : "influence", method: Number(best[0]), order: "cluster", cell: null };
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const cache = new Map();
  /** What is shown: what was asked for, or what the method has. */
  const what = () => { const m = methods[state.method]; return m[state.what] ? state.what : m.kin ? "kin" : "influence"; };
  const told = () => methods[state.method][what()];
  function matrix() {
    const key = [state.method, what(), blocks ? state.order : ""].join(" ");
    if (!cache.has(key)) cache.set(key, bytes(told()[blocks ? state.order : "given"]));
    return cache.get(key);
  }
  const orders = [["cluster", "By cluster"], ["given", "As given"]];
  const anyGain = methods.find((m) => m.gain);
  if (!blocks && anyGain) orders.push(["gain", "By gain"]);
  const identity = units.names.map((_, k) => k);
  function order() {
    if (blocks || state.order === "given") return identity.slice(0, methods[state.method][what()].size);
    if (state.order === "cluster") return sortedBy(units.cluster);
    return sortedBy((methods[state.method].gain || anyGain.gain).map((g) => (known(g) ? -g : Infinity)));
  }
  const controls = byId("influence-controls");
  if (shown.some(([k]) => methods[k].kin) && shown.some(([k]) => methods[k].influence)) controls.append(segments("Matrix", [["influence", "Shaped"], ["kin", "Helps"]], state.what, (v) => { state.what = v; state.cell = null; draw(); }));
  controls.append(segments("Order", orders, state.order, (v) => { state.order = v; state.cell = null; draw(); }));
  if (shown.length > 1) controls.append(selector("Method", shown, String(state.method), (v) => { state.method = Number(v); draw(); }));

  let cell = 1, left = 0, topEdge = 0, rank = [];
  function draw() {
    const data = told(), size = data.size, values = matrix(), kin = what() === "kin";
    const narrow = canvas.parentElement.clientWidth, axis = 20;
    const longest = size <= 40 && !blocks ? Math.min(Math.max(...units.names.map((n) => n.length)) * 6.2 + 8, narrow * 0.3) : 0;
    const side = Math.min(narrow - longest - axis, 520), below = longest ? longest * 0.72 + 12 : 4;
    const [c, width] = sized(canvas, Math.round(side + below + axis));
    rank = order(); cell = side / size; left = Math.max(longest + axis, (width - side) / 2); topEdge = 1;
    const stops = ramp();
    for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) {
      c.fillStyle = mix(stops, values[rank[i] * size + rank[j]] / 255);
      const [x, y] = [Math.floor(left + j * cell), Math.floor(topEdge + i * cell)];
      c.fillRect(x, y, Math.ceil(left + (j + 1) * cell) - x, Math.ceil(topEdge + (i + 1) * cell) - y);
    }
    c.font = "11px " + css("--sans"); c.textBaseline = "middle"; c.fillStyle = css("--soft"); c.textAlign = "right";
    if (longest && cell >= 9) rank.forEach((k, i) => {
      const name = shorten(c, units.names[k], longest - 8);
      c.fillText(name, left - 6, topEdge + (i + 0.5) * cell);
      slanted(c, name, left + (i + 0.5) * cell, topEdge + side + 6);
    });
    if (cell >= 38) rank.forEach((a, i) => rank.forEach((b, j) => {
      const depth = values[a * size + b] / 255;
      c.textAlign = "center"; c.fillStyle = contrast(mixed(stops, depth));
      c.fillText(share(depth ** 2 * data.max), left + (j + 0.5) * cell, topEdge + (i + 0.5) * cell);
    }));
    c.textAlign = "center"; c.font = "12px " + css("--sans"); c.fillStyle = css("--soft");
    c.fillText(kin ? "who helps" : "whose updates", left + side / 2, topEdge + side + below + axis / 2 - 2);
    c.save(); c.translate(left - longest - axis / 2, topEdge + side / 2); c.rotate(-Math.PI / 2);
    c.fillText(kin ? "who is helped" : "in whose model", 0, 0); c.restore();
    if (state.order === "cluster" && !blocks) borders(c, size, side);
    if (state.cell) {
      c.strokeStyle = css("--bad"); c.lineWidth = 2;
      c.strokeRect(left + state.cell[1] * cell, topEdge + state.cell[0] * cell, cell, cell);
    }
    byId("influence-h").textContent = kin ? "Who helps whom" : "Who shaped whom";
    const means = kin ? "each row shows whom that client takes from, by how well the others' models do on its samples" : "each row shows whose updates are in that client's model";
    byId("influence-about").textContent = `${methods[state.method].label}: ${means}; a row sums to 100 %. ${kin ? methods[state.method].helps : ""}` + (blocks ? ` Cells are means over about ${Math.round(N / size)} × ${Math.round(N / size)} clients.` : "") + (state.order === "cluster" ? ` Clusters: ${units.cluster_source}.` : "");
    byId("influence-legend").replaceChildren(rampLegend(stops, "0 %", share(data.max)), "(square-root scale)");
    canvas.setAttribute("aria-label", `${kin ? "Help among" : "Influence of"} ${size} by ${size} ${blocks ? "blocks of clients" : "clients"}. Arrow keys move from cell to cell.`);
  }
  function borders(c, size, side) {
    c.strokeStyle = css("--faint"); c.lineWidth = 1;
    for (let i = 1; i < size; i++) if (units.cluster[rank[i]] !== units.cluster[rank[i - 1]]) {
      const [x, y] = [Math.round(left + i * cell) + 0.5, Math.round(topEdge + i * cell) + 0.5];
      c.beginPath(); c.moveTo(left, y); c.lineTo(left + side, y); c.moveTo(x, topEdge); c.lineTo(x, topEdge + side); c.stroke();
    }
  }
  function read(i, j) {
    const data = told(), value = (matrix()[rank[i] * data.size + rank[j]] / 255) ** 2 * data.max;
    const name = (k) => (blocks ? `block ${k + 1}` : units.names[rank[k]]);
    if (what() === "kin") return i === j && !blocks ? `${name(i)} keeps ${share(value)} for its own model` : `${name(i)} takes ${share(value)} from ${name(j)}`;
    return i === j && !blocks ? `${name(i)}: ${share(value)} of its model is its own work` : `${name(i)} owes ${share(value)} of its model to ${name(j)}`;
  }
  function point(i, j) { state.cell = [i, j]; readout.textContent = read(i, j); draw(); }
  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect(), size = told().size;
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
    const size = told().size, [i, j] = state.cell || [0, 0];
    point(Math.min(Math.max(i + step[0], 0), size - 1), Math.min(Math.max(j + step[1], 0), size - 1));
  });
  drawn(draw);
})();

/** A name under a column, from its upper right end. */
function slanted(c, name, x, y) {
  c.save(); c.translate(x + 3, y); c.rotate(-Math.PI / 4); c.textAlign = "right"; c.fillText(name, 0, 0); c.restore();
}

function shorten(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  let text = name;
  while (text.length > 1 && context.measureText(text + "…").width > room) text = text.slice(0, -1);
  return text + "…";
}
