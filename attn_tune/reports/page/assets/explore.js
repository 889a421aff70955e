"use strict";
(() => {
  const place = document.getElementById("vega");
  if (!place || !window.attnTune || !window.vegaEmbed) return;
  const { data, configs } = window.attnTune;
  if (!data.searches.length) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const rows = (search) => configs(search).map(([places, value]) => {
    const row = { ratio: value < 0 ? null : value / 1000, us: value < 0 ? null : value * search.b / 1e6,
      outcome: value < 0 ? data.names[-1 - value] : "ok" };
    search.k.forEach((knob, i) => { row[knob] = search.v[i][places[i]]; });
    return row;
  });
  const field = (name) => `datum[${JSON.stringify(name)}]`;
  const spec = (search, x, y) => {
    const knobs = search.k, ink = colour("--ink"), line = colour("--line"), muted = colour("--muted");
    const brushed = knobs.map((_, i) => `c${i}`);
    const sort = (knob) => search.v[knobs.indexOf(knob)];
    const width = Math.max(180, Math.min(440, place.clientWidth - 180));
    const bars = (knob, i) => ({
      width: 150, height: 90,
      params: [{ name: brushed[i], select: { type: "point", encodings: ["x"], toggle: "true" } }],
      transform: [{ filter: "datum.ratio != null" }, { filter: { param: "near" } },
        ...brushed.filter((_, j) => j !== i).map((param) => ({ filter: { param } }))],
      mark: { type: "bar" },
      encoding: {
        x: { field: knob.replace(/\./g, "\\."), type: "nominal", sort: sort(knob), title: knob },
        y: { aggregate: "min", field: "ratio", title: i ? null : "best, times", scale: { domainMin: 1, zero: false } },
        opacity: { condition: { param: brushed[i], value: 1 }, value: 0.3 },
        tooltip: [{ field: knob.replace(/\./g, "\\."), title: knob }, { aggregate: "min", field: "ratio", format: ".3f", title: "best, times" },
          { aggregate: "count", title: "configs" }],
      },
    });
    return {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      data: { values: rows(search) },
      background: null,
      vconcat: [
        { [place.clientWidth < 720 ? "vconcat" : "hconcat"]: [
          { width, height: 220,
            title: { text: "best of what is selected", anchor: "start" },
            transform: [{ filter: "datum.ratio != null" }, { filter: { param: "near" } }, ...brushed.map((param) => ({ filter: { param } })),
              { calculate: field(x), as: "across" }, { calculate: field(y), as: "up" }],
            mark: "rect",
            encoding: {
              x: { field: "across", type: "nominal", sort: sort(x), title: x, axis: { labelAngle: 0 } },
              y: { field: "up", type: "nominal", sort: [...sort(y)].reverse(), title: y },
              color: { aggregate: "min", field: "ratio", title: "times the best",
                scale: { type: "log", domain: [1, 4], clamp: true, range: [colour("--h0"), colour("--h7")] } },
              tooltip: [{ field: "across", title: x }, { field: "up", title: y }, { aggregate: "min", field: "ratio", format: ".3f", title: "times the best" },
                { aggregate: "min", field: "us", format: ".4~g", title: "us" }, { aggregate: "count", title: "configs" }],
            } },
          { width: Math.min(240, width), height: 220,
            title: { text: "drag here: configs by time", anchor: "start" },
            params: [{ name: "near", select: { type: "interval", encodings: ["x"] } }],
            transform: [{ filter: "datum.ratio != null" }, { calculate: "log(datum.ratio) / LN2", as: "doublings" }],
            mark: "bar",
            encoding: {
              x: { field: "ratio", type: "quantitative", bin: { maxbins: 40 }, title: "times the best", axis: { labelOverlap: "greedy", labelSeparation: 8 } },
              y: { aggregate: "count", title: "configs" },
              color: { condition: { param: "near", value: colour("--accent") }, value: line },
            } },
        ] },
        { columns: Math.max(1, Math.floor(place.clientWidth / 230)), concat: knobs.map(bars) },
      ],
      config: {
        font: "system-ui, sans-serif", view: { stroke: line }, bar: { color: colour("--accent") },
        axis: { labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal" },
        legend: { orient: place.clientWidth < 520 ? "bottom" : "right", labelColor: muted, titleColor: muted, titleFontWeight: "normal" }, title: { color: ink, fontSize: 12 },
      },
    };
  };
  const make = (name, attributes, ...children) => {
    const node = Object.assign(document.createElement(name), attributes);
    node.append(...children);
    return node;
  };
  const options = (names) => names.map((name, i) => make("option", { value: i }, name));
  const many = data.searches.map((search, i) => [search, i]).filter(([search]) => search.k.length > 1);
  if (!many.length) return;
  const pick = make("select", { ariaLabel: "search" }, ...many.map(([search, i]) => make("option", { value: i }, search.n)));
  const x = make("select", { ariaLabel: "knob across" }), y = make("select", { ariaLabel: "knob up" });
  const target = make("div", { className: "vega" });
  const show = () => {
    const search = data.searches[pick.value];
    return window.vegaEmbed(target, spec(search, search.k[x.value], search.k[y.value]), { ast: true, actions: false, renderer: "svg" });
  };
  const begin = () => {
    const search = data.searches[pick.value];
    x.replaceChildren(...options(search.k));
    y.replaceChildren(...options(search.k));
    [x.value, y.value] = search.p;
    return show();
  };
  pick.addEventListener("input", begin);
  x.addEventListener("input", show);
  y.addEventListener("input", show);
  place.append(make("h3", {}, "Explore one search"),
    make("p", { className: "sub" }, "Drag over the times, click values of knobs (double click: all again): everything else follows."),
    make("div", { className: "pickers" }, pick, " across ", x, " up ", y), target);
  place.hidden = false;
  window.attnTuneReady = begin();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
})();
