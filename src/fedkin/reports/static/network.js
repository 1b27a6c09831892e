// The client graph: a canvas to pan, zoom, point at and walk with the arrow keys; a card tells about one client.

(function clientGraph() {
  const section = byId("network");
  if (!page.graphs.length) {
    section.querySelector(".network").hidden = true;
    byId("network-about").textContent = "None of these runs uses a graph between clients.";
    return;
  }
  const canvas = byId("network-canvas"), card = byId("client-card");
  const gaining = methods.map((m, k) => k).filter((k) => methods[k].gain);
  const graphBased = gaining.filter((k) => methods[k].graph !== null);
  const mean = (list) => list.filter(known).reduce((a, b) => a + b, 0) / Math.max(list.filter(known).length, 1);
  const bestOf = (list) => list.reduce((a, b) => (mean(methods[b].gain) > mean(methods[a].gain) ? b : a), list[0]);
  const start = gaining.length ? bestOf(graphBased.length ? graphBased : gaining) : methods.findIndex((m) => m.graph !== null);
  const state = { graph: Math.max(methods[start].graph ?? 0, 0), method: start, colour: gaining.length ? "gain" : "metric", zoom: 1, x: 0, y: 0, focus: null, pinned: false };
  const neighbours = page.graphs.map((g) => {
    const near = Array.from({ length: N }, () => []);
    g.from.forEach((a, e) => { near[a].push([g.to[e], g.weight[e]]); near[g.to[e]].push([a, g.weight[e]]); });
    near.forEach((list) => list.sort((a, b) => b[1] - a[1]));
    return near;
  });
  const clusterCount = Math.max(...units.cluster) + 1;

  // ---- controls
  const colours = [...(gaining.length ? [["gain", "Gain"]] : []), ["metric", metric.label], ["cluster", "Cluster"], ...(units.labels ? [["labels", "Label mix"]] : [])];
  const controls = byId("network-controls");
  controls.append(segments("Colour by", colours, state.colour, (v) => { state.colour = v; draw(); }));
  const withValues = methodOptions(() => true);
  if (withValues.length > 1) controls.append(selector("Method", withValues, String(state.method), (v) => { state.method = Number(v); draw(); describe(); }));
  if (page.graphs.length > 1) controls.append(selector("Graph", page.graphs.map((g, k) => [String(k), g.used_by.join(", ")]), String(state.graph), (v) => { state.graph = Number(v); draw(); describe(); }));
  if (N <= 2000) controls.append(selector(units.grouped ? "Group" : "Client", [["", "find…"], ...units.names.map((n, k) => [String(k), n])], "", (v) => { if (v !== "") { focus(Number(v), true); } }));

  // ---- geometry: graph coordinates in the unit square → pixels
  let width = 0, height = 0, side = 0;
  const px = (k) => { const g = page.graphs[state.graph]; return [width / 2 + ((g.x[k] - 0.5) * side + state.x) * state.zoom, height / 2 + ((g.y[k] - 0.5) * side + state.y) * state.zoom]; };
  const radius = (k) => {
    const base = Math.max(2.2, Math.min(15, (0.25 * side) / Math.sqrt(N))) * Math.min(Math.sqrt(state.zoom), 2.5);
    const most = Math.max(...units.samples);
    return base * (0.72 + 0.56 * Math.sqrt(units.samples[k] / most));
  };

  function fill(k) {
    const m = methods[state.method];
    if (state.colour === "gain") {
      const top = gainTop();
      return !m.gain || !known(m.gain[k]) ? css("--neutral") : mix(diverging(), 0.5 + m.gain[k] / top / 2);
    }
    if (state.colour === "metric") {
      const [low, high] = extent(m.values.deployed);
      return known(m.values.deployed[k]) ? mix(viridis, (m.values.deployed[k] - low) / (high - low || 1)) : css("--neutral");
    }
    return category(units.cluster[k], clusterCount);
  }
  const gainTop = () => Math.max(...extent(methods[state.method].gain || [1]).map(Math.abs), 1e-9);

  function disc(c, k, x, y, r) {
    if (state.colour === "labels") {
      const row = units.labels[k], total = row.reduce((a, b) => a + b, 0) || 1;
      let angle = -Math.PI / 2;
      row.forEach((count, label) => {
        if (!count) return;
        const next = angle + (2 * Math.PI * count) / total;
        c.fillStyle = category(label, row.length);
        c.beginPath(); c.moveTo(x, y); c.arc(x, y, r, angle, next); c.fill();
        angle = next;
      });
    } else { c.fillStyle = fill(k); c.beginPath(); c.arc(x, y, r, 0, 7); c.fill(); }
    c.lineWidth = k === state.focus ? 3 : 1;
    c.strokeStyle = css(k === state.focus ? "--ink" : "--surface");
    c.beginPath(); c.arc(x, y, r + (k === state.focus ? 2 : 0), 0, 7); c.stroke();
  }

  function draw() {
    const boxWidth = canvas.parentElement.clientWidth;
    let c;
    [c, width, height] = sized(canvas, Math.round(Math.max(300, Math.min(560, boxWidth * 0.78))));
    const margin = N > 400 ? 18 : N > 60 ? 34 : 42;
    side = Math.min(width, height) - 2 * margin;
    const g = page.graphs[state.graph], place = units.names.map((_, k) => px(k));
    const near = state.focus === null ? null : new Map(neighbours[state.graph][state.focus]);
    const crowd = Math.min(1, 900 / Math.max(g.from.length, 1));
    c.lineCap = "round";
    const ink = channels(isDark() ? "#aeb8c4" : "#3a4656").join(",");
    g.from.forEach((a, e) => {
      const b = g.to[e], w = g.weight[e], lit = near && (a === state.focus || b === state.focus);
      const alpha = near && !lit ? 0.04 : lit ? 0.35 + 0.6 * w : (0.06 + 0.5 * w * w) * (0.3 + 0.7 * crowd);
      c.strokeStyle = lit ? css("--accent") : `rgba(${ink},${alpha.toFixed(3)})`;
      c.globalAlpha = lit ? alpha : 1;
      c.lineWidth = (0.4 + 2.6 * w) * (lit ? 1.2 : 0.8);
      c.beginPath(); c.moveTo(...place[a]); c.lineTo(...place[b]); c.stroke();
    });
    c.globalAlpha = 1;
    place.forEach(([x, y], k) => {
      if (x < -20 || y < -20 || x > width + 20 || y > height + 20) return;
      c.globalAlpha = near && k !== state.focus && !near.has(k) ? 0.28 : 1;
      disc(c, k, x, y, radius(k));
    });
    c.globalAlpha = 1;
    names(c, place, near);
    about(g);
    legend();
  }

  /** Names where there is room for them: never over a name already written. */
  function names(c, place, near) {
    if (N > 60 && state.zoom < Math.sqrt(N) / 6 && state.focus === null) return;
    c.font = "11.5px " + css("--sans");
    c.textAlign = "center";
    c.lineWidth = 3.5; c.lineJoin = "round"; c.strokeStyle = css("--paper"); c.fillStyle = css("--ink");
    const taken = [];
    const order = place.map((_, k) => k).sort((a, b) => (b === state.focus) - (a === state.focus));
    for (const k of order) {
      if (near && k !== state.focus && !near.has(k)) continue;
      const name = units.names[k].length > 24 ? units.names[k].slice(0, 23) + "…" : units.names[k];
      const [x, y] = [place[k][0], place[k][1] + radius(k) + 13], half = c.measureText(name).width / 2 + 3;
      if (x - half < 0 || x + half > width || y > height - 2 || y < 10) continue;
      if (taken.some(([a, b, w]) => Math.abs(a - x) < w + half && Math.abs(b - y) < 14)) continue;
      taken.push([x, y, half]);
      c.strokeText(name, x, y); c.fillText(name, x, y);
    }
  }

  function about(g) {
    const drawnEdges = g.from.length < g.edges ? `the ${g.from.length.toLocaleString("en")} strongest of ${g.edges.toLocaleString("en")} edges` : `${g.edges.toLocaleString("en")} edges`;
    const who = units.grouped ? `${page.clients.toLocaleString("en")} clients in ${N} groups` : `${N.toLocaleString("en")} clients`;
    byId("network-about").textContent = `${who}, ${drawnEdges}, ${g.kin ? "who helps whom by" : "known to"} ${g.used_by.join(", ")}. Thicker edges are heavier, larger discs hold more samples. Drag to pan; click, then scroll or press + and − to zoom; arrow keys walk from ${unitWord} to ${unitWord}.`;
  }

  function legend() {
    const box = byId("network-legend"), m = methods[state.method];
    if (state.colour === "gain") box.replaceChildren(m.gain ? rampLegend(diverging(), `${change(-gainTop())}`, change(gainTop())) : "Training alone is what gains are measured against.", m.gain ? `gain with ${m.label}` : "");
    else if (state.colour === "metric") { const [low, high] = extent(m.values.deployed); box.replaceChildren(rampLegend(viridis, amount(low), amount(high)), `${metric.label} with ${m.label}`); }
    else if (state.colour === "cluster") box.replaceChildren(`Clusters: ${units.cluster_source}.`, ...(clusterCount <= 12 ? Array.from({ length: clusterCount }, (_, k) => swatch(category(k, clusterCount), String(k + 1))) : []));
    else box.replaceChildren(...(units.classes.length <= 24 ? units.classes.map((name, k) => swatch(category(k, units.classes.length), name)) : [rampLegend(viridis, units.classes[0], units.classes.at(-1))]));
  }

  // ---- one client
  function focus(k, pinned = false) {
    if (k === state.focus && pinned === state.pinned) return;
    state.focus = k; state.pinned = pinned;
    draw(); describe();
  }
  function describe() {
    const k = state.focus;
    if (k === null) {
      card.replaceChildren(make("h3", {}, `Point at a ${unitWord}`), make("p", {}, `Its data, its ${metric.label} and its neighbours appear here.`), ...extremes());
      return;
    }
    const top = neighbours[state.graph][k].slice(0, 6);
    const scores = methods.filter((m) => known(m.values.deployed[k])).slice(0, 8).map((m) => make("li", {}, make("span", {}, m.label), make("span", {}, amount(m.values.deployed[k]) + (m.gain && known(m.gain[k]) ? ` (${change(m.gain[k]).replace(" points", "")})` : ""))));
    const parts = [make("h3", {}, units.names[k]), make("p", {}, `${units.samples[k].toLocaleString("en")} training samples · cluster ${units.cluster[k] + 1}`)];
    if (units.labels) parts.push(make("h4", {}, "Labels"), mixBar(k), make("p", {}, mostLabels(k)));
    parts.push(make("h4", {}, metric.label[0].toUpperCase() + metric.label.slice(1)), make("ul", {}, ...scores));
    parts.push(make("h4", {}, `Neighbours (${neighbours[state.graph][k].length})`), make("ul", {}, ...top.map(([j, w]) => make("li", {}, make("span", {}, make("button", { type: "button", onclick: () => focus(j, true) }, units.names[j])), make("span", {}, plain(w * page.graphs[state.graph].heaviest))))));
    card.replaceChildren(...parts);
    canvas.setAttribute("aria-label", `Client graph. ${units.names[k]} in focus, ${neighbours[state.graph][k].length} neighbours.`);
  }
  /** Who gains and who loses most, as ways into the picture. */
  function extremes() {
    const { gain, label } = methods[state.method];
    if (!gain) return [];
    const order = sortedBy(gain.map((g) => (known(g) ? -g : 0)));
    const list = (chosen) => make("ul", {}, ...chosen.map((k) => make("li", {}, make("span", {}, make("button", { type: "button", onclick: () => focus(k, true) }, units.names[k])), make("span", {}, change(gain[k])))));
    const [up, down] = [order.filter((k) => gain[k] > 1e-12).slice(0, 4), order.filter((k) => gain[k] < -1e-12).reverse().slice(0, 4)];
    return [...(up.length ? [make("h4", {}, `Gain most with ${label}`), list(up)] : []), ...(down.length ? [make("h4", {}, "Lose most"), list(down)] : [])];
  }
  const mixBar = (k) => make("div", { class: "mix", "aria-hidden": "true" }, ...units.labels[k].map((count, label) => (count ? make("i", { style: `flex:${count};background:${category(label, units.classes.length)}` }) : null)));
  function mostLabels(k) {
    const total = units.labels[k].reduce((a, b) => a + b, 0) || 1;
    return units.labels[k].map((count, label) => [count, label]).filter(([count]) => count).sort((a, b) => b[0] - a[0]).slice(0, 3).map(([count, label]) => `${units.classes[label]}: ${share(count / total)}`).join(" · ");
  }

  // ---- hands
  const at = (event) => { const frame = canvas.getBoundingClientRect(); return [event.clientX - frame.left, event.clientY - frame.top]; };
  function nearest(x, y, reach) {
    let found = null, best = Infinity;
    for (let k = 0; k < N; k++) {
      const [a, b] = px(k), d = Math.hypot(a - x, b - y) - radius(k);
      if (d < best && d < reach) { best = d; found = k; }
    }
    return found;
  }
  function zoomBy(factor, x = width / 2, y = height / 2) {
    const next = Math.min(Math.max(state.zoom * factor, 0.7), 40);
    state.x += (x - width / 2) * (1 / next - 1 / state.zoom);
    state.y += (y - height / 2) * (1 / next - 1 / state.zoom);
    state.zoom = next;
    draw();
  }
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event)); moved = 0;
    canvas.classList.add("grabbing");
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!pointers.has(event.pointerId)) { if (!state.pinned) { const k = nearest(x, y, 8); if (k !== state.focus) focus(k); } return; }
    const [x0, y0] = pointers.get(event.pointerId);
    if (pointers.size === 2) {
      const [[, other]] = [...pointers].filter(([id]) => id !== event.pointerId);
      const before = Math.hypot(x0 - other[0], y0 - other[1]), after = Math.hypot(x - other[0], y - other[1]);
      if (before > 0) zoomBy(after / before, (x + other[0]) / 2, (y + other[1]) / 2);
    } else { state.x += (x - x0) / state.zoom; state.y += (y - y0) / state.zoom; }
    moved += Math.hypot(x - x0, y - y0);
    pointers.set(event.pointerId, [x, y]);
    if (moved > 3) draw();
  });
  const release = (event) => {
    if (pointers.has(event.pointerId) && moved <= 3 && event.type === "pointerup") { const k = nearest(...at(event), 12); focus(k, k !== null); }
    pointers.delete(event.pointerId);
    canvas.classList.remove("grabbing");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { if (!state.pinned && document.activeElement !== canvas) focus(null); });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return; // scrolling past must not zoom
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 400), ...at(event));
  }, { passive: false });
  const all = () => { state.zoom = 1; state.x = state.y = 0; draw(); };
  section.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => ({ in: () => zoomBy(1.5), out: () => zoomBy(1 / 1.5), all })[button.dataset.zoom]()));
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key in steps) walk(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") zoomBy(1.3);
    else if (event.key === "-") zoomBy(1 / 1.3);
    else if (event.key === "0") all();
    else if (event.key === "Escape") focus(null);
    else return;
    event.preventDefault();
  });
  /** To the client that lies nearest in a direction; sideways distance counts double. */
  function walk(dx, dy) {
    if (state.focus === null) { focus(nearest(width / 2, height / 2, Infinity), true); return; }
    const [x, y] = px(state.focus);
    let found = null, best = Infinity;
    for (let k = 0; k < N; k++) {
      const [a, b] = px(k), along = (a - x) * dx + (b - y) * dy, aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
      if (k !== state.focus && along > 0.5 && along + 2 * aside < best) { best = along + 2 * aside; found = k; }
    }
    if (found !== null) focus(found, true);
  }

  canvas.setAttribute("aria-label", `Client graph of ${N} ${unitWord}s. Arrow keys move from one to the next, plus and minus zoom, zero shows all.`);
  describe();
  drawn(draw);
  // For people who script the page (and its tests): where a client is drawn, and what is in focus.
  canvas.locate = (k) => px(k);
  canvas.view = state;
})();
