// The LLM tab of Locust's web UI. Locust renders the tab's table; this draws what is above it:
// state, verdict, key figures, charts, workers, errors and files. Plain SVG, no library.
(() => {
  "use strict";
  const base = document.currentScript.dataset.base || "";
  const POLL_MS = 1000;
  const css = `
  #ts-panel{--fg:#1f2933;--soft:#66717d;--line:#d8dee4;--card:#fff;--c0:#1f77b4;--c1:#e67e22;--c2:#c0392b;
    font:14px/1.4 system-ui,sans-serif;color:var(--fg);margin:16px 0;padding:0 4px}
  #ts-panel.dark{--fg:#e6edf3;--soft:#9aa7b4;--line:#3a444f;--card:#1c2229;--c0:#58a6ff;--c1:#f0a35e;--c2:#ff7b72}
  #ts-panel h3{font-size:13px;margin:0 0 4px;font-weight:600;display:flex;justify-content:space-between;gap:8px;flex-wrap:wrap}
  #ts-panel .legend{font-weight:400;color:var(--soft)} #ts-panel .legend b{font-weight:600}
  #ts-panel .grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:12px}
  #ts-panel .figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:8px;margin:10px 0}
  #ts-panel .card{border:1px solid var(--line);background:var(--card);border-radius:6px;padding:8px 10px;min-width:0}
  #ts-panel .figures span{color:var(--soft);font-size:12px;display:block} #ts-panel .figures strong{font-size:16px}
  #ts-panel svg{width:100%;height:150px;display:block} #ts-panel text{fill:var(--soft);font-size:11px}
  #ts-panel .bad{color:var(--c2)} #ts-panel a{color:var(--c0)} #ts-panel table{border-collapse:collapse;width:100%;font-size:13px}
  #ts-panel td,#ts-panel th{text-align:left;padding:3px 8px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
  #ts-panel .wrap{overflow-x:auto}`;
  const esc = (v) => String(v).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const round = (v) => (v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2));
  const seconds = (v) => (v == null ? "-" : v === 0 ? "0" : v < 1e-3 ? `${round(v * 1e6)} µs` : v < 1 ? `${round(v * 1e3)} ms` : `${round(v)} s`);
  const number = (v) => (v == null ? "-" : Number.isInteger(v) || v >= 1000 ? Math.round(v).toLocaleString("en") : round(v));
  const CHARTS = [
    { title: "Time to first token", unit: seconds, lines: [["p50", (r) => r.ttft_s.p50], ["p90", (r) => r.ttft_s.p90], ["p99", (r) => r.ttft_s.p99]] },
    { title: "Inter-token latency", unit: seconds, lines: [["p50", (r) => r.itl_s.p50], ["p90", (r) => r.itl_s.p90], ["p99", (r) => r.itl_s.p99]] },
    { title: "Output tokens per second", unit: number, lines: [["tokens/s", (r) => r.output_tokens_per_s]] },
    { title: "Requests in flight", unit: number, lines: [["in flight", (r) => r.in_flight], ["users", (r) => r.users]] },
    { title: "Requests per second", unit: number, lines: [["sent", (r) => r.achieved_rate], ["planned", (r) => r.planned_rate || null], ["failed", (r) => r.failed / r.seconds]] },
    { title: "Generator: CPU of the busiest worker", unit: (v) => `${Math.round(v * 100)} %`, lines: [["cpu", (r) => Math.max(0, ...r.workers.map((w) => w.cpu))]] },
  ];

  const chart = (spec, rows) => {
    const W = 340, H = 150, L = 54, R = 8, T = 8, B = 20;
    const series = spec.lines.map(([name, get]) => [name, rows.map((r) => [r.offset_s, get(r)]).filter((p) => p[0] != null && p[1] != null)]);
    const all = series.flatMap(([, p]) => p);
    const legend = series.filter(([, p]) => p.length).map(([n, p], i) => `<span style="color:var(--c${i})">■</span> ${esc(n)} <b>${esc(spec.unit(p[p.length - 1][1]))}</b>`).join(" &nbsp;");
    if (!all.length) return `<div class="card"><h3>${esc(spec.title)}</h3><svg viewBox="0 0 ${W} ${H}" role="img"><text x="${W / 2}" y="${H / 2}" text-anchor="middle">no samples yet</text></svg></div>`;
    const x0 = Math.min(...all.map((p) => p[0])), x1 = Math.max(x0 + 1, ...all.map((p) => p[0]));
    const top = Math.max(...all.map((p) => p[1])) * 1.1 || 1;
    const x = (v) => L + ((W - L - R) * (v - x0)) / (x1 - x0), y = (v) => H - B - ((H - T - B) * v) / top;
    const grid = [0, 0.5, 1].map((f) => `<line x1="${L}" x2="${W - R}" y1="${y(top * f)}" y2="${y(top * f)}" stroke="var(--line)"/><text x="${L - 4}" y="${y(top * f) + 4}" text-anchor="end">${esc(spec.unit(top * f))}</text>`).join("");
    const ticks = `<text x="${L}" y="${H - 5}">${Math.round(x0)} s</text><text x="${W - R}" y="${H - 5}" text-anchor="end">${Math.round(x1)} s</text>`;
    const lines = series.map(([, p], i) => p.length === 1
      ? `<circle cx="${x(p[0][0])}" cy="${y(p[0][1])}" r="2.5" fill="var(--c${i})"/>`
      : `<polyline fill="none" stroke-width="1.6" stroke="var(--c${i})" points="${p.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ")}"/>`).join("");
    return `<div class="card"><h3>${esc(spec.title)}<span class="legend">${legend}</span></h3><svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${esc(spec.title)}">${grid}${ticks}${lines}</svg></div>`;
  };

  const figures = (data) => {
    const rows = data.rows, last = rows[rows.length - 1], q = data.run.requests;
    const cards = [["requests ok", number(q.ok)], ["failed", number(q.failed + q.dropped + q.lost), q.failed + q.dropped + q.lost > 0]];
    if (last) cards.push(["in flight", number(last.in_flight)], ["requests/s", number(last.requests_per_s)], ["tokens/s", number(last.output_tokens_per_s)],
      ["TTFT p50 / p99", `${seconds(last.ttft_s.p50)} / ${seconds(last.ttft_s.p99)}`], ["ITL p50 / p99", `${seconds(last.itl_s.p50)} / ${seconds(last.itl_s.p99)}`]);
    return cards.map(([k, v, bad]) => `<div class="card"><span>${esc(k)}</span><strong class="${bad ? "bad" : ""}">${esc(v)}</strong></div>`).join("");
  };

  const verdict = (v) => {
    if (!v) return "";
    const word = !v.valid ? "invalid: its numbers must not be used" : v.passed ? "valid, SLOs passed" : "valid, an SLO failed";
    return ` &ndash; <strong class="${v.valid && v.passed ? "" : "bad"}">${word}</strong>${v.reasons.map((r) => `<div class="bad">${esc(r)}</div>`).join("")}`;
  };

  const render = (data) => {
    if (!data.run) return "<p>No run yet. Start one with the form; figures appear here while it goes on.</p>";
    const workers = data.rows.length ? data.rows[data.rows.length - 1].workers : [];
    const files = data.run.files.map((f) => `<a href="${base}/tokenswarm/files/${f}" target="_blank">${f}</a>`).join(" · ");
    return `<div><strong>${esc(data.run.name)}</strong> (${esc(data.run.model)}): ${esc(data.run.state)}${verdict(data.verdict)}</div>
      <div class="figures">${figures(data)}</div><div class="grid">${CHARTS.map((c) => chart(c, data.rows)).join("")}
      <div class="card wrap"><h3>Workers</h3><table><tr><th>id</th><th>state</th><th>CPU</th><th>loop lag p99</th><th>in flight</th></tr>${workers.map((w) => `<tr><td title="${esc(w.id)}">${esc(w.id.length > 18 ? `${w.id.slice(0, 10)}…${w.id.slice(-6)}` : w.id)}</td><td>${esc(w.state)}</td><td>${Math.round(w.cpu * 100)} %</td><td>${seconds(w.loop_lag_p99_s)}</td><td>${w.in_flight}</td></tr>`).join("")}</table></div>
      <div class="card wrap"><h3>Errors</h3>${data.run.errors.length ? `<table>${data.run.errors.map(([o, t, n]) => `<tr><td>${n}</td><td class="bad">${esc(o)}</td><td>${esc(t)}</td></tr>`).join("")}</table>` : "none"}</div></div>
      <p>${files ? `Files of the run: ${files}` : ""}</p>`;
  };

  // Locust is a React page: the panel lives beside its root and shows while the LLM tab is chosen.
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const panel = document.createElement("section");
  panel.id = "ts-panel";
  const tabChosen = () => [...document.querySelectorAll('[role="tab"][aria-selected="true"]')].some((t) => t.textContent.trim() === "LLM");
  const place = () => {
    const chosen = tabChosen();
    panel.hidden = !chosen;
    if (!chosen) return false;
    const tabs = document.querySelector('[role="tablist"]');
    const table = [...document.querySelectorAll("table")].find((t) => !panel.contains(t));
    let holder = table || tabs;  // climb to the part of the page that holds the table but not the tabs
    while (table && holder.parentElement && !holder.parentElement.contains(tabs)) holder = holder.parentElement;
    if (table && panel.nextElementSibling !== holder) holder.before(panel);
    else if (!table && !panel.isConnected) tabs.parentElement.after(panel);
    const background = getComputedStyle(document.body).backgroundColor.match(/\d+/g) || [255, 255, 255];
    panel.classList.toggle("dark", background.slice(0, 3).reduce((a, b) => a + Number(b), 0) < 380);
    return true;
  };
  const tick = async () => {
    try {
      if (place()) panel.innerHTML = render(await (await fetch(`${base}/tokenswarm/live.json`)).json());
    } catch (e) {
      panel.innerHTML = `<p class="bad">The master does not answer: ${esc(e.message)}</p>`;
    }
    setTimeout(tick, POLL_MS);
  };
  document.addEventListener("click", () => setTimeout(place, 50));
  tick();
})();
