// The graph's frequencies: the filter applied to them, and how much of the clients' models lives at each.

(function spectrum() {
  const shown = methodOptions((m) => m.graph !== null && page.graphs[m.graph].eigenvalues && (m.response || m.energy));
  if (!shown.length) { byId("spectrum").hidden = true; return; }
  const state = { method: Number((shown.find(([k]) => methods[k].response) || shown[0])[0]) };
  if (shown.length > 1) byId("spectrum-controls").append(selector("Method", shown, String(state.method), (v) => { state.method = Number(v); draw(); }));

  function draw() {
    const m = methods[state.method], lambdas = page.graphs[m.graph].eigenvalues, box = byId("spectrum-plot");
    const width = box.clientWidth, left = 52, right = 14;
    const panels = [m.response ? "response" : null, m.energy ? "energy" : null].filter(Boolean);
    const each = panels.length > 1 ? 122 : 240, gap = 36, height = panels.length * (each + gap) + 26;
    const X = scale(0, lambdas.at(-1) || 1, left, width - right);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Graph spectrum of ${m.label}: ${lambdas.length} eigenvalues from 0 to ${plain(lambdas.at(-1))}` });
    panels.forEach((panel, p) => {
      const top = p * (each + gap) + 22, bottom = top + each;
      root.append(svg("text", { x: left, y: top - 10 }, panel === "response" ? `h(λ), ${m.response.name}` : "share of the models' energy at λ (log)"));
      if (panel === "response") response(root, m, X, top, bottom, width); else energy(root, m, lambdas, X, top, bottom, width);
      root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
    });
    const end = panels.length * (each + gap) - gap + 22;
    for (const t of ticks(0, lambdas.at(-1) || 1, width / 110)) root.append(svg("text", { x: X(t), y: end + 16, "text-anchor": "middle" }, plain(t)));
    root.append(svg("text", { x: width - right, y: height - 1, "text-anchor": "end" }, "graph frequency λ"));
    box.replaceChildren(root);
    byId("spectrum-about").textContent = `${m.label}: eigenvalues of the graph's Laplacian. At λ = 0 all clients agree; the larger λ, the more neighbours differ.` + (m.response ? " The filter of the last round keeps what is near 1 and damps what is near 0." : "");
  }
  function response(root, m, X, top, bottom, width) {
    const [low, high] = extent([...m.response.h, 0, 1]), Y = scale(low, high, bottom, top);
    for (const t of ticks(low, high, 3)) root.append(svg("line", { class: "grid", x1: 52, x2: width - 14, y1: Y(t), y2: Y(t) }), svg("text", { x: 44, y: Y(t) + 4, "text-anchor": "end" }, plain(t)));
    const points = m.response.lambda.map((l, k) => [X(l), Y(m.response.h[k])]);
    root.append(svg("path", { d: path(points), fill: "none", stroke: m.colour, "stroke-width": 2.2 }));
    page.graphs[m.graph].eigenvalues.forEach((l) => {
      const k = m.response.lambda.reduce((near, v, i) => (Math.abs(v - l) < Math.abs(m.response.lambda[near] - l) ? i : near), 0);
      root.append(svg("circle", { cx: X(l), cy: Y(m.response.h[k]), r: 3, fill: m.colour }, svg("title", {}, `λ = ${plain(l)}, h = ${plain(m.response.h[k])}`)));
    });
  }
  function energy(root, m, lambdas, X, top, bottom, width) {
    const logs = m.energy.map((e) => (known(e) && e > 0 ? Math.log10(Math.max(e, 1e-9)) : null));
    const [low, high] = extent([...logs, 0]), Y = scale(Math.floor(low), high, bottom, top);
    for (const t of ticks(Math.floor(low), high, 4).filter(Number.isInteger)) root.append(svg("line", { class: "grid", x1: 52, x2: width - 14, y1: Y(t), y2: Y(t) }), svg("text", { x: 44, y: Y(t) + 4, "text-anchor": "end" }, t === 0 ? "1" : `10${String(t).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`));
    logs.forEach((v, k) => { if (known(v)) root.append(svg("line", { x1: X(lambdas[k]), x2: X(lambdas[k]), y1: bottom, y2: Y(v), stroke: m.colour, "stroke-opacity": 0.35 }), svg("circle", { cx: X(lambdas[k]), cy: Y(v), r: 3, fill: m.colour }, svg("title", {}, `λ = ${plain(lambdas[k])}: ${plain(100 * m.energy[k])} %`))); });
  }
  drawn(draw);
})();
