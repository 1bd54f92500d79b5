"use strict";
// Shows, under the pointer, what each picture carries beside it as JSON: {x, t, s}.
for (const figure of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  if (!data.x.length) continue;
  const plot = figure.querySelector(".plot");
  const svg = plot.querySelector("svg");
  const cursor = plot.querySelector(".cursor");
  const tip = plot.querySelector(".tip");
  const hide = () => { cursor.setAttribute("hidden", ""); tip.hidden = true; };
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const at = (event.clientX - box.left) / scale;
    let best = 0;
    data.x.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(data.x[best] - at)) best = k; });
    const x = data.x[best];
    cursor.removeAttribute("hidden");
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    tip.textContent = [data.t[best], ...data.s.map(([name, values]) => `${name}  ${values[best]}`)].join("\n");
    tip.hidden = false;
    const room = box.width - tip.offsetWidth;
    const left = x * scale + 10;
    tip.style.left = `${Math.max(0, left < room ? left : x * scale - 10 - tip.offsetWidth)}px`;
  };
  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerdown", move);
  plot.addEventListener("pointerleave", hide);
}
