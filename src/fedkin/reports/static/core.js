"use strict";
// Shared by all charts: the data, elements, colours, scales, tooltips.

const page = JSON.parse(document.getElementById("data").textContent);
const units = page.units, methods = page.methods, metric = page.metric;
const N = units.names.length;
const unitWord = units.grouped ? "group" : "client";

const byId = (id) => document.getElementById(id);

/** An HTML element; text always goes in as text, so a name is never read as markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAll(element, attributes);
  element.append(...children.filter((child) => child !== null));
  return element;
}
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAll(element, attributes);
  element.append(...children);
  return element;
}
function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
}

// ---- words ----------------------------------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const plain = (value, digits = 3) => (known(value) ? String(Number(value.toPrecision(digits))) : "–").replace("-", "−");
const percentage = (value) => (known(value) ? (100 * value).toFixed(1) + " %" : "–");
const percent = metric.unit === "%";
const amount = percent ? percentage : (value) => (known(value) ? `${plain(value)} ${metric.unit}`.trim() : "–");
function change(value) {
  if (!known(value)) return "–";
  const shown = percent ? (100 * value).toFixed(1) + " points" : amount(value);
  return (value > 0 ? "+" : "") + shown.replace("-", "−");
}
const share = (value) => (value < 0.0995 ? (100 * value).toFixed(1) : (100 * value).toFixed(0)) + " %";

// ---- colours (Okabe and Ito for categories; a blue–orange pair for loss and gain; one dark-to-light ramp) --------------

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => document.documentElement.dataset.theme === "dark";
let together = 0;
methods.forEach((m) => {
  const k = m.alone ? -1 : together++;
  m.colour = m.alone ? "var(--alone)" : `var(--c${k % 7})`;
  m.dash = m.alone ? "2 4" : ["", "7 4", "1.5 3.5 7 3.5"][Math.floor(k / 7) % 3];
});
const resolve = (colour) => (colour.startsWith("var(") ? css(colour.slice(4, -1)) : colour);

const ten = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1", "#8d99a6", "#7a4a1e"];
/** Ten colours told apart by colour-blind readers; more classes than that get evenly spaced steps of a ramp. */
const category = (k, count) => (count <= 10 ? ten[k % 10] : mix(viridis, count > 1 ? k / (count - 1) : 0));
const viridis = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"];
const rampLight = ["#f6f5f0", "#c9e3dd", "#73babf", "#3182b0", "#27427f", "#1a1440"];
const rampDark = ["#171b21", "#1f3f63", "#2a7aa0", "#5fb7b5", "#c3e3c7", "#fdfbe8"];
const ramp = () => (isDark() ? rampDark : rampLight);
const diverging = () => (isDark() ? ["#f08a3c", "#8f5a35", "#4a525e", "#3f7397", "#56b4e9"] : ["#c75300", "#efae78", "#e4e2dc", "#86bbe0", "#0068a8"]);

const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
function mixed(stops, at) {
  const x = Math.min(Math.max(at, 0), 1) * (stops.length - 1);
  const k = Math.min(Math.floor(x), stops.length - 2);
  const [a, b] = [channels(stops[k]), channels(stops[k + 1])];
  return a.map((v, c) => Math.round(v + (b[c] - v) * (x - k)));
}
/** Ink that can be read on a colour. */
const contrast = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1c2430" : "#ffffff");
const mix = (stops, at) => `rgb(${mixed(stops, at).join(",")})`;

// ---- scales -----------------------------------------------------------------------------------------------------------

const scale = (from, to, low, high) => (value) => low + ((value - from) / (to - from || 1)) * (high - low);
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) out.push(Number(t.toPrecision(12)));
  return out;
}
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (known(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  return low <= high ? [low, high] : [0, 1];
}
const path = (points) => points.filter(([, y]) => known(y)).map(([x, y], k) => (k ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");
const sortedBy = (keys) => keys.map((_, k) => k).sort((a, b) => keys[a] - keys[b] || a - b);

/** Methods by the mean of their deployed models, the best first. */
function ranked(list) {
  const mean = (k) => { const own = methods[k].values.deployed.filter(known); return own.reduce((a, b) => a + b, 0) / Math.max(own.length, 1); };
  return [...list].sort((a, b) => (metric.larger ? mean(b) - mean(a) : mean(a) - mean(b)));
}

// ---- controls ----------------------------------------------------------------------------------------------------------

/** Buttons of which one is pressed. */
function segments(label, options, chosen, choose) {
  const box = make("div", { class: "segments", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    box.append(make("button", { type: "button", "data-value": value, "aria-pressed": String(value === chosen), onclick: () => {
      for (const b of box.children) b.setAttribute("aria-pressed", String(b.dataset.value === value));
      choose(value);
    } }, text));
  }
  return box;
}
function selector(label, options, chosen, choose) {
  const list = make("select", { "aria-label": label, onchange: () => choose(list.value) });
  for (const [value, text] of options) list.append(make("option", { value }, text));
  list.value = chosen;
  return make("label", {}, label, list);
}
const methodOptions = (keep) => methods.map((m, k) => [String(k), m.label, m]).filter(([, , m]) => keep(m)).map(([k, label]) => [k, label]);

// ---- tooltip -------------------------------------------------------------------------------------------------------------

const tip = byId("tip");
function showTip(x, y, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth - 8 ? x - width - 14 : x + 14;
  tip.style.left = Math.max(8, Math.min(left, innerWidth - width - 8)) + "px";
  tip.style.top = Math.max(8, Math.min(y + 14, innerHeight - height - 8)) + "px";
}
const hideTip = () => { tip.hidden = true; };
const tipRow = (name, value, colour) =>
  make("div", { class: "row" }, make("span", {}, colour ? make("i", { style: `background:${colour}` }) : "", name), make("span", {}, value));
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// ---- redrawing ---------------------------------------------------------------------------------------------------------

const drawings = [];
/** A chart registers how it is drawn; it is drawn now, and again when its width or the theme changes. */
function drawn(draw) { drawings.push(draw); draw(); }
const redraw = () => drawings.forEach((draw) => draw());

/** Size a canvas to its box in device pixels and return its context, in CSS pixels. */
function sized(canvas, height) {
  const width = Math.round(canvas.parentElement.clientWidth), ratio = Math.max(devicePixelRatio || 1, 1);
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}
function rampLegend(stops, low, high) {
  const colours = stops.map((_, k) => mix(stops, k / (stops.length - 1))).join(",");
  return make("span", { class: "ramp" }, low, make("i", { style: `background:linear-gradient(90deg,${colours})` }), high);
}
const swatch = (colour, text) => make("span", { class: "swatch" }, make("i", { style: `background:${colour}` }), text);
