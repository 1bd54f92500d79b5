// The LLM tab of Locust's web UI. Locust renders the tab's table; this draws what is above it:
// state, verdict, key figures, charts, workers, errors and files. Plain SVG, no library.
// In the start form it hides Locust's ramp-up, which starts Locust's users and no request of ours
// (a ramp is a stage of the workload), and says whose users are meant. The field stays, out of
// sight, with the value that Locust wants to have.
(() => {
  "use strict";
  const base = document.currentScript.dataset.base || "";
  const POLL_MS = 1000, MOST_ROWS = 900, WHOLE_S = 0.5;  // a shorter interval gives no rate
  const css = `
  .ts{--fg:#1f2933;--soft:#5b6671;--line:#d8dee4;--card:#fff;--bad:#b42318;--good:#157347;--link:#0b5cad;
    --c0:#1f77b4;--c1:#e67e22;--c2:#c0392b;font:14px/1.4 system-ui,sans-serif;color:var(--fg)}
  .ts.dark{--fg:#e6edf3;--soft:#9aa7b4;--line:#3a444f;--card:#1c2229;--bad:#ff8f86;--good:#5fd08f;--link:#79b8ff;
    --c0:#58a6ff;--c1:#f0a35e;--c2:#ff7b72}
  #ts-panel{margin:16px 0;padding:0 4px} #ts-panel[hidden]{display:none}
  #ts-panel h3{font-size:13px;margin:0 0 4px;font-weight:600;display:flex;justify-content:space-between;gap:2px 8px;flex-wrap:wrap}
  #ts-panel .legend{font-weight:400;color:var(--soft)} #ts-panel .legend span{white-space:nowrap;margin-left:8px}
  #ts-panel .legend span:first-child{margin-left:0} #ts-panel .legend i{font-style:normal} #ts-panel .legend b{font-weight:600}
  #ts-panel .grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:12px;margin-bottom:12px}
  #ts-panel .figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:10px 0}
  #ts-panel .card{border:1px solid var(--line);background:var(--card);border-radius:6px;padding:8px 10px;min-width:0}
  #ts-panel .figures span{color:var(--soft);font-size:12px;display:block} #ts-panel .figures strong{font-size:14px;white-space:nowrap}
  #ts-panel svg{width:100%;height:150px;display:block} #ts-panel text{fill:var(--soft);font-size:11px}
  .ts .bad{color:var(--bad)} .ts .good{color:var(--good)} .ts a{color:var(--link)}
  #ts-panel table{border-collapse:collapse;width:100%;font-size:13px}
  #ts-panel td,#ts-panel th{text-align:left;padding:3px 8px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
  #ts-panel .wrap{overflow:auto;max-height:190px} #ts-panel .name{white-space:nowrap}
  #ts-problem{position:fixed;z-index:2000;left:50%;bottom:16px;transform:translateX(-50%);width:min(720px,calc(100vw - 32px));
    box-sizing:border-box;max-height:50vh;overflow:auto;border:1px solid var(--bad);background:var(--card);border-radius:6px;
    padding:10px 12px;box-shadow:0 4px 16px #0006}
  #ts-problem pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:6px 0;font:13px/1.4 ui-monospace,monospace}
  #ts-problem button{float:right;border:1px solid var(--line);background:none;color:inherit;border-radius:4px;padding:2px 10px;cursor:pointer}
  .MuiFormControl-root:has(input[name="spawnRate"]){display:none}
  .MuiFormControl-root:has(input[name="userCount"])::after{font:12px/1.5 system-ui,sans-serif;opacity:.75;margin:4px 14px 0;
    content:"Of a closed loop without stages. Stages run as the workload has them; the rate of an open loop is under Custom parameters."}
  p.MuiFormHelperText-root,.MuiAlert-message{white-space:pre-line;overflow-wrap:anywhere}`;
  const esc = (v) => String(v).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const round = (v) => (v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2));
  const seconds = (v) => (v == null ? "-" : v === 0 ? "0" : v < 1e-3 ? `${round(v * 1e6)} µs` : v < 1 ? `${round(v * 1e3)} ms` : `${round(v)} s`);
  const number = (v) => (v == null ? "-" : Number.isInteger(v) || v >= 1000 ? Math.round(v).toLocaleString("en") : round(v));
  const share = (v) => `${Math.round(v * 100)} %`;
  const rate = (get) => (r) => (r.seconds >= WHOLE_S ? get(r) : null);
  const worst = (key) => (r) => { const known = r.workers.map((w) => w[key]).filter((v) => v != null); return known.length ? Math.max(...known) : null; };
  const three = (name) => [["p50", (r) => r[name].p50], ["p90", (r) => r[name].p90], ["p99", (r) => r[name].p99]];
  const CHARTS = [
    { title: "Time to first token", unit: seconds, lines: three("ttft_s") },
    { title: "Inter-token latency", unit: seconds, lines: three("itl_s") },
    { title: "Output tokens per second", unit: number, lines: [["tokens/s", rate((r) => r.output_tokens_per_s)]] },
    { title: "Requests in flight", unit: number, lines: [["in flight", (r) => r.in_flight], ["users", (r) => r.users || null, "closed"]], wanted: "users" },
    { title: "Requests per second", unit: number, lines: [["sent", rate((r) => r.achieved_rate)], ["planned", rate((r) => r.planned_rate || null)]], wanted: "planned" },
    { title: "Errors per second", unit: number, lines: [["failed", rate((r) => r.failed / r.seconds)], ["dropped", rate((r) => r.dropped / r.seconds)]] },
    { title: "Generator: CPU", unit: share, lines: [["busiest worker", worst("cpu")]] },
    { title: "Generator: loop lag p99", unit: seconds, lines: [["slowest worker", worst("loop_lag_p99_s")]] },
  ];

  // The next value of which the half is a round number too: 309 -> 400, 0.109 -> 0.12.
  const roundUp = (v) => { const power = 10 ** Math.floor(Math.log10(v || 1)); return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].find((s) => s * power >= v) * power; };
  const H = 150, L = 58, R = 8, T = 8, B = 20;
  // A line may be of one load mode only: in an open loop Locust's users are the requests in flight.
  const chart = (spec, rows, W, mode) => {
    const series = spec.lines.filter(([, , only]) => !only || only === mode).map(([name, get]) => [name, rows.map((r) => [r.offset_s, get(r)]).filter((p) => p[0] != null && p[1] != null)]);
    const all = series.flatMap(([, p]) => p);
    const shown = series.map(([n, p], i) => p.length ? `<span><i style="color:var(--c${i})">■</i> ${esc(n)} <b>${esc(spec.unit(p[p.length - 1][1]))}</b></span>` : "").join("");
    const frame = (inside) => `<div class="card chart"><h3>${esc(spec.title)}<span class="legend">${shown}</span></h3><svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${esc(spec.title)}">${inside}</svg></div>`;
    if (!all.length) return frame(`<text x="${W / 2}" y="${H / 2}" text-anchor="middle">no samples yet</text>`);
    const x0 = Math.min(...all.map((p) => p[0])), x1 = Math.max(x0 + 1, ...all.map((p) => p[0]));
    const top = roundUp(Math.max(...all.map((p) => p[1])) * 1.03);
    const x = (v) => L + ((W - L - R) * (v - x0)) / (x1 - x0), y = (v) => H - B - ((H - T - B) * v) / top;
    const grid = [0, 0.5, 1].map((f) => `<line x1="${L}" x2="${W - R}" y1="${y(top * f)}" y2="${y(top * f)}" stroke="var(--line)"/><text x="${L - 4}" y="${y(top * f) + 4}" text-anchor="end">${esc(spec.unit(top * f))}</text>`).join("");
    const ticks = `<text x="${L}" y="${H - 5}">${Math.round(x0)} s</text><text x="${W - R}" y="${H - 5}" text-anchor="end">${Math.round(x1)} s</text>`;
    const lines = series.map(([, p], i) => p.length === 1
      ? `<circle cx="${x(p[0][0])}" cy="${y(p[0][1])}" r="2.5" fill="var(--c${i})"/>`
      : `<polyline fill="none" stroke-width="1.6" stroke="var(--c${i})" ${spec.wanted === series[i][0] ? ' stroke-dasharray="5 4"' : ""} points="${p.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ")}"/>`);
    if (!spec.wanted) lines.reverse();  // what is wanted is drawn dashed, over what is
    return frame(grid + ticks + lines.join(""));
  };

  // Of a run that is over: the summary's figures; before, those of the last interval.
  const figures = (data, rows) => {
    const q = data.run.requests, end = data.verdict;
    const now = end || rows[rows.length - 1];
    const cards = [["requests ok", number(q.ok)], ["failed", number(q.failed), q.failed > 0]];
    for (const what of ["dropped", "lost"]) if (q[what]) cards.push([what, number(q[what]), true]);
    if (now && !end) cards.push(["in flight", number(now.in_flight)]);
    if (now) cards.push(["requests/s", number(now.requests_per_s)], ["output tokens/s", number(now.output_tokens_per_s)],
      ["TTFT p50 / p99", `${seconds(now.ttft_s.p50)} / ${seconds(now.ttft_s.p99)}`], ["ITL p50 / p99", `${seconds(now.itl_s.p50)} / ${seconds(now.itl_s.p99)}`]);
    return cards.map(([k, v, wrong]) => `<div class="card"><span>${esc(k)}</span><strong class="${wrong ? "bad" : ""}">${esc(v)}</strong></div>`).join("");
  };

  const verdict = (v) => {
    if (!v) return "";
    const [word, kind] = !v.valid ? ["invalid: its numbers must not be used", "bad"] : v.passed ? ["valid, SLOs passed", "good"]
      : v.passed === false ? ["valid, an SLO failed", "bad"] : ["valid, not every SLO could be judged", ""];
    const state = { true: ["PASS", "good"], false: ["FAIL", "bad"], null: ["not judged", ""] };
    return ` &ndash; <strong class="${kind}">${word}</strong>${v.reasons.map((r) => `<div class="bad">${esc(r)}</div>`).join("")}
      ${v.checks.map(([passed, text, detail]) => `<div><b class="${state[passed][1]}">${state[passed][0]}</b> ${esc(text)}: ${esc(detail || "-")}</div>`).join("")}`;
  };

  const workers = (data, rows) => {
    const latest = Object.fromEntries((rows.length ? rows[rows.length - 1].workers : []).map((w) => [w.id, w]));
    const lines = Object.entries(data.run.workers).sort((a, b) => a[1].index - b[1].index).map(([id, w]) => {
      const now = latest[id] || {};
      const state = w.state === "running" && data.run.state === "done" ? "done" : w.state;
      return `<tr><td class="name" title="${esc(id)}">${w.index}${w.host ? ` on ${esc(w.host)}` : ""}</td><td class="${state === "lost" ? "bad" : ""}">${esc(state)}</td>
        <td>${now.cpu == null ? "-" : share(now.cpu)}</td><td>${seconds(now.loop_lag_p99_s)}</td><td>${now.in_flight ?? "-"}</td></tr>`;
    });
    return `<div class="card wrap"><h3>Workers</h3><table><tr><th>worker</th><th>state</th><th>CPU</th><th>lag p99</th><th>in flight</th></tr>${lines.join("")}</table></div>`;
  };

  const errors = (list) => !list.length ? "" : `<div class="card wrap"><h3>Errors</h3><table>${list.map(([o, t, n]) =>
    `<tr><td>${number(n)}</td><td class="bad">${esc(o)}</td><td>${esc(t)}</td></tr>`).join("")}</table></div>`;

  const render = (data, rows) => {
    const preparing = data.preparing ? "<p>Preparing prompts and asking the server ...</p>" : "";
    if (!data.run) return preparing || "<p>No run yet. Start one with the form; figures appear here while it goes on.</p>";
    const room = panel.clientWidth - 8, columns = Math.max(1, Math.floor((room + 12) / 332));
    const W = Math.max(200, Math.round((room - 12 * (columns - 1)) / columns - 22));
    const files = data.run.files.map((f) => `<a href="${base}/tokenswarm/files/${f}" target="_blank">${f}</a>`).join(" · ");
    return `${preparing}<div><strong>${esc(data.run.name)}</strong> (${esc(data.run.model)}): ${esc(data.run.state)}${verdict(data.verdict)}</div>
      ${files ? `<div>Files of the run: ${files}</div>` : ""}
      <div class="figures">${figures(data, rows)}</div><div class="grid">${CHARTS.map((c) => chart(c, rows, W, data.run.mode)).join("")}${workers(data, rows)}</div>
      ${errors(data.run.errors)}`;
  };

  // Locust is a React page: the panel lives beside its root and shows while the LLM tab is chosen.
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const panel = document.createElement("section");
  panel.id = "ts-panel";
  panel.className = "ts";
  const problem = document.createElement("section");
  problem.id = "ts-problem";
  problem.className = "ts";
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  document.body.append(problem);
  const tabChosen = () => [...document.querySelectorAll('[role="tab"][aria-selected="true"]')].some((t) => t.textContent.trim() === "LLM");
  const place = () => {
    const background = getComputedStyle(document.body).backgroundColor.match(/\d+/g) || [255, 255, 255];
    const dark = background.slice(0, 3).reduce((a, b) => a + Number(b), 0) < 380;
    for (const part of [panel, problem]) part.classList.toggle("dark", dark);
    const chosen = tabChosen();
    panel.hidden = !chosen;
    if (!chosen) return false;
    const tabs = document.querySelector('[role="tablist"]');
    const table = [...document.querySelectorAll("table")].find((t) => !panel.contains(t));
    let holder = table || tabs;  // climb to the part of the page that holds the table but not the tabs
    while (table && holder.parentElement && !holder.parentElement.contains(tabs)) holder = holder.parentElement;
    if (table && panel.nextElementSibling !== holder) holder.before(panel);
    else if (!table && !panel.isConnected) tabs.parentElement.after(panel);
    return true;
  };

  // What kept the last start from being a run is said on every tab, until it is put away.
  let putAway = "";
  const refuse = (texts, running) => {
    const text = texts.join("\n");
    if (!text) putAway = "";
    problem.hidden = !text || text === putAway;
    if (problem.hidden || problem.dataset.text === text) return;
    problem.dataset.text = text;
    problem.innerHTML = `<button type="button">Close</button><strong class="bad">The run was not ${running ? "changed" : "started"}</strong><pre>${esc(text)}</pre>`;
    problem.querySelector("button").onclick = () => { putAway = text; problem.hidden = true; };
  };

  let run = "", count = 0, rows = [];
  const tick = async () => {
    try {
      const chosen = place();
      const answer = await fetch(`${base}/tokenswarm/live.json?${chosen ? `run=${encodeURIComponent(run)}&count=${count}` : "brief=1"}`);
      const data = await answer.json();
      refuse(data.refused, data.preparing || (data.run && !["idle", "done"].includes(data.run.state)));
      if (chosen) {
        if (!data.run || data.run.id !== run) { rows = []; run = data.run ? data.run.id : ""; }
        rows = rows.concat(data.rows).slice(-MOST_ROWS);
        count = data.count;
        panel.innerHTML = render(data, rows);
      }
    } catch (e) {
      panel.innerHTML = `<p class="bad">The master does not answer: ${esc(e.message)}</p>`;
    }
    setTimeout(tick, POLL_MS);
  };
  document.addEventListener("click", () => setTimeout(place, 50));
  tick();
})();
