"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, ...children) => {
    const drawn = ["svg", "rect", "text", "title"].includes(name);
    const node = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // The filter: elements carry the number of their op, device and problem.
  const form = document.querySelector("form.filters");
  const items = all("[data-o],[data-d],[data-p]");
  const names = [];
  for (const item of items) {
    const head = item.querySelector("th,b,title");
    if (item.dataset.p && head && names[item.dataset.p] === undefined)
      names[item.dataset.p] = `${head.textContent} ${head.title || ""}`.toLowerCase();
  }
  const apply = () => {
    const op = form.elements.op.value, device = form.elements.device.value;
    const words = form.elements.point.value.toLowerCase().split(/\s+/).filter(Boolean);
    const points = names.map((name) => words.every((word) => name.includes(word)));
    let shown = 0;
    for (const item of items) {
      const { o, d, p } = item.dataset;
      item.hidden = (op !== "" && o !== undefined && o !== op) || (device !== "" && d !== undefined && d !== device)
        || (p !== undefined && !points[p]);
      shown += item.hidden ? 0 : 1;
    }
    form.querySelector("output").value = shown === items.length ? "" : `${shown} of ${items.length} items shown`;
  };
  if (form) {
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    apply();
  }

  // Landscapes of any two knobs.
  const store = document.getElementById("data");
  if (!store) return;
  const data = JSON.parse(store.textContent);
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  const three = (value) => value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
  const configs = (search) => {
    const found = [];
    for (let i = 0; i < search.r.length; i += 2) {
      let rest = search.r[i];
      const places = [];
      for (let knob = search.k.length - 1; knob >= 0; knob--) {
        const count = search.v[knob].length;
        places[knob] = rest % count;
        rest = Math.floor(rest / count);
      }
      found.push([places, search.r[i + 1]]);
    }
    return found;
  };
  // As in landscape.py.
  const longest = (values) => Math.max(...values.map((value) => value.length));
  const gutterOf = (values) => Math.min(150, Math.max(62, 10 + 7 * longest(values)));
  const widthOf = (values) => Math.max(34, 6 * longest(values) + 6);
  const draw = (search, x, y) => {
    const columns = search.v[x], lines = y < 0 ? [""] : search.v[y], cell = 26, left = gutterOf(lines);
    const height = cell * lines.length, cells = new Map(), outlines = [];
    for (const [places, value] of configs(search)) {
      const key = places[x] + columns.length * (y < 0 ? 0 : places[y]);
      const one = cells.get(key) || { best: Infinity, count: 0, codes: [] };
      one.count += 1;
      if (value < 0) one.codes.push(-1 - value); else one.best = Math.min(one.best, value / 1000);
      cells.set(key, one);
    }
    const [unit, name] = units.find(([size]) => search.b >= size) || units[3];
    const picture = make("svg", { width: "100%", height: height + 18, role: "img",
      "aria-label": `best time by ${search.k[x]}${y < 0 ? "" : " and " + search.k[y]}` });
    const gutter = make("svg", { width: left, height: height + 18, "aria-hidden": "true" });
    columns.forEach((value, i) => picture.append(make("text",
      { x: `${100 * (i + 0.5) / columns.length}%`, y: height + 14, class: "tick", "text-anchor": "middle" }, value)));
    lines.forEach((value, j) => {
      const top = cell * (lines.length - 1 - j);
      gutter.append(make("text", { x: left - 6, y: top + cell / 2 + 4, class: "tick", "text-anchor": "end" }, value));
      columns.forEach((column, i) => {
        const one = cells.get(i + columns.length * j);
        const place = { x: `${100 * i / columns.length}%`, y: top + 0.5, width: `${100 / columns.length}%`, height: cell - 1 };
        const pair = `${search.k[x]}=${column}` + (y < 0 ? "" : ` ${search.k[y]}=${value}`);
        if (!one) { picture.append(make("rect", { ...place, class: "h-none" })); return; }
        const at = { x: `${100 * (i + 0.5) / columns.length}%`, y: top + cell / 2 + 4 };
        if (one.best === Infinity) {
          const code = [...new Set(one.codes)].sort((a, b) => a - b).reduce((most, c) =>
            one.codes.filter((d) => d === c).length > one.codes.filter((d) => d === most).length ? c : most);
          picture.append(make("rect", { ...place, class: "h-fail", fill: `url(#f-${data.slugs[code]})` },
            make("title", {}, `${pair}: ${one.count} configs, all failed, most: ${data.names[code]}`)),
            make("text", { ...at, class: "v f" }, data.words[code]));
          return;
        }
        let shade = data.bins.findIndex((end) => one.best <= end);
        if (shade < 0) shade = data.bins.length;
        if (one.best === 1) outlines.push(make("rect", { ...place, class: "best" }));
        picture.append(make("rect", { ...place, class: `h${shade}` },
          make("title", {}, `${pair}: ${three(one.best * search.b / unit)} ${name}, ${one.best.toFixed(3)} of the best, ` +
            `${one.count} configs, ${one.codes.length} failed`)),
          make("text", { ...at, class: `v v${shade}` }, three(one.best * search.b / unit)));
      });
    });
    picture.append(...outlines);
    const heat = make("div", { class: "heat" }, gutter, picture);
    heat.style.minWidth = `${left + widthOf(columns) * columns.length}px`;
    const foot = make("p", { class: "axes" }, ...(y < 0 ? [] : [make("span", {}, `↑ ${search.k[y]}`)]),
      make("span", {}, `${search.k[x]} →`), make("span", {}, `times in ${name}`));
    return [heat, foot];
  };
  const choose = (label, names, at) => {
    const select = make("select", { "aria-label": label }, ...names.map((name, i) => make("option", { value: i }, name)));
    select.value = at;
    return select;
  };
  const pickers = (search, frame) => {
    const [first, second] = search.p;
    const x = choose("knob across", search.k, first);
    const y = choose("knob up", search.k, second < 0 ? first : second);
    const redraw = () => frame.replaceChildren(...draw(search, +x.value, x.value === y.value ? -1 : +y.value));
    x.addEventListener("input", redraw);
    y.addEventListener("input", redraw);
    return [make("div", { class: "pickers" }, "across ", x, " up ", y), redraw];
  };
  for (const card of all("[data-s]")) {
    const search = data.searches[card.dataset.s];
    if (!search || search.k.length < 2) continue;
    const frame = card.querySelector(".map");
    frame.before(pickers(search, frame)[0]);
  }
  const explorer = document.getElementById("explorer");
  if (explorer && data.searches.length > all("[data-s]").length) {
    const pick = choose("search", data.searches.map((search) => search.n), 0);
    const body = make("div", {});
    const show = () => {
      const frame = make("div", { class: "map" });
      const [bar, redraw] = pickers(data.searches[pick.value], frame);
      redraw();
      body.replaceChildren(bar, frame);
    };
    pick.addEventListener("input", show);
    explorer.append(make("h3", {}, "Any search"), make("div", { class: "pickers" }, pick), body);
    explorer.hidden = false;
    show();
  }
  window.attnTune = { data, configs };
})();
