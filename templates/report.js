"use strict";
// The charts of a report: SVG drawn from the page's own data. Texts are only ever set as text, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DASHES = ["", "7 3", "2 3", "9 3 2 3"]; // of the runs, for those who cannot tell their colours apart
  const several = data.runs.length > 1;
  const redraws = [];

  const svg = (name, attributes, parent, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, attributes, parent, text) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const show = (value) => {
    if (value === null) return "-";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  };
  const clock = (s) => {
    const two = (n) => String(Math.floor(n)).padStart(2, "0");
    return `${Math.floor(s / 3600)}:${two((s / 60) % 60)}:${two(s % 60)}`;
  };
  // Return round values within a range, about `count` of them; `bases` are the steps within a power of ten.
  const ticks = (low, high, count) => {
    const raw = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((base) => base * power).find((one) => one >= raw) || raw;
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high && found.length < 50; at++) found.push(at * step);
    return found;
  };
  const clockTicks = (low, high, count) => {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
    const step = steps.find((one) => one >= (high - low) / count) || ticks(low, high, count)[1] - ticks(low, high, count)[0];
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high && found.length < 50; at++) found.push(at * step);
    return found;
  };

  // A frame has what charts and timelines share: the svg, the horizontal axis, zoom, cursor and tooltip.
  // `paint` draws into it, `read` says what is at a place, and `stops` are the places the arrow keys go to.
  class Frame {
    constructor(figure, title, hooks) {
      Object.assign(this, { figure, title, hooks, cursor: null, view: null });
      this.svg = svg("svg", { tabindex: 0, role: "img" }, figure);
      this.tip = html("div", { class: "tip", hidden: "", role: "status", "aria-live": "polite" }, figure);
      this.listen();
      redraws.push(() => this.draw());
      this.draw();
    }
    draw() {
      const width = Math.max(280, Math.round(this.figure.clientWidth));
      const left = this.hooks.left(width);
      this.box = { left, top: 8, right: width - 10, bottom: this.hooks.height(width) - 22, width };
      this.range = this.hooks.range();
      const [low, high] = this.view || this.range;
      this.x = (value) => left + ((value - low) / (high - low)) * (this.box.right - left);
      this.at = (px) => low + ((px - left) / (this.box.right - left)) * (high - low);
      this.low = low;
      this.high = high;
      this.svg.replaceChildren();
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.hooks.height(width)}`);
      this.svg.setAttribute("aria-label", `${this.title}; arrow keys move the cursor, plus and minus zoom, Escape shows all`);
      const marks = this.hooks.ticks(low, high, Math.max(3, Math.floor(width / 110)));
      const label = this.hooks.label || show;
      for (const one of marks) {
        svg("line", { class: "grid", x1: this.x(one), x2: this.x(one), y1: this.box.top, y2: this.box.bottom }, this.svg);
        const anchor = this.x(one) > this.box.right - 20 ? "end" : "middle";
        svg("text", { x: this.x(one), y: this.box.bottom + 15, "text-anchor": anchor }, this.svg, label(one));
      }
      this.hooks.paint(this);
      this.overlay = svg("g", {}, this.svg);
      this.pointTo(this.cursor);
    }
    pointTo(value, quiet) {
      this.cursor = value;
      this.overlay.replaceChildren();
      const inside = value !== null && value >= this.low && value <= this.high;
      const text = inside ? this.hooks.read(value, this) : "";
      this.tip.hidden = !text;
      if (!text) return;
      const px = this.x(value);
      svg("line", { class: "cursor", x1: px, x2: px, y1: this.box.top, y2: this.box.bottom }, this.overlay);
      this.tip.textContent = text;
      const scale = this.svg.clientWidth / this.box.width || 1;
      const place = px * scale + (px > this.box.width / 2 ? -this.tip.offsetWidth - 12 : 12);
      this.tip.style.left = `${Math.max(0, Math.min(place, this.figure.clientWidth - this.tip.offsetWidth))}px`;
      this.tip.style.top = `${this.svg.offsetTop + 12}px`;
    }
    zoomTo(low, high) {
      const [first, last] = this.range;
      const whole = high - low >= last - first;
      this.view = whole || high - low < (last - first) * 1e-4 ? (whole ? null : this.view) : [Math.max(first, low), Math.min(last, high)];
      this.draw();
    }
    zoomBy(factor) {
      const middle = this.cursor === null ? (this.low + this.high) / 2 : this.cursor;
      this.zoomTo(middle - (middle - this.low) * factor, middle + (this.high - middle) * factor);
    }
    step(direction) {
      const stops = this.hooks.stops(this).filter((one) => one >= this.low && one <= this.high);
      if (!stops.length) return;
      const from = this.cursor === null ? (direction > 0 ? -Infinity : Infinity) : this.cursor;
      const next = direction > 0 ? stops.find((one) => one > from) : stops.findLast((one) => one < from);
      this.pointTo(next === undefined ? from : next);
    }
    px(event) {
      const place = this.svg.getBoundingClientRect();
      return ((event.clientX - place.left) * this.box.width) / place.width;
    }
    // Move or zoom the view, so that the value that each finger holds stays beneath it.
    follow([one, other]) {
      if (other && Math.abs(other.px - one.px) > 10) {
        const scale = (other.value - one.value) / (other.px - one.px);
        if (scale > 0) this.zoomTo(one.value - (one.px - this.box.left) * scale, one.value + (this.box.right - one.px) * scale);
      } else if (!other) {
        const by = Math.min(Math.max(one.value - this.at(one.px), this.range[0] - this.low), this.range[1] - this.high);
        this.zoomTo(this.low + by, this.high + by);
      }
    }
    listen() {
      let from = null;
      const fingers = new Map();
      const hold = () => fingers.forEach((one) => (one.value = this.at(one.px)));
      const within = (px) => Math.min(this.box.right, Math.max(this.box.left, px));
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse" && event.button === 0) from = within(this.px(event));
        if (event.pointerType === "touch") fingers.set(event.pointerId, { px: within(this.px(event)) }), hold();
      });
      this.svg.addEventListener("pointermove", (event) => {
        const px = within(this.px(event));
        if (fingers.has(event.pointerId)) {
          fingers.get(event.pointerId).px = px;
          if (this.view || fingers.size > 1) return this.follow([...fingers.values()]);
        }
        this.pointerY = ((event.clientY - this.svg.getBoundingClientRect().top) * this.box.width) / this.svg.clientWidth;
        this.pointTo(this.at(px));
        if (from !== null) {
          const [x, width] = [Math.min(from, px), Math.abs(px - from)];
          svg("rect", { class: "zoom", x, width, y: this.box.top, height: this.box.bottom - this.box.top }, this.overlay);
        }
      });
      for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, (event) => fingers.delete(event.pointerId) && hold());
      window.addEventListener("pointerup", (event) => {
        if (from === null) return;
        const [low, high] = [from, within(this.px(event))].sort((a, b) => a - b);
        from = null;
        if (high - low > 6) this.zoomTo(this.at(low), this.at(high));
      });
      this.svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.pointTo(null));
      this.svg.addEventListener("blur", () => this.pointTo(null));
      this.svg.addEventListener("dblclick", () => this.zoomTo(-Infinity, Infinity));
      const keys = {
        ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5),
        "-": () => this.zoomBy(2), Escape: () => this.zoomTo(-Infinity, Infinity),
        Home: () => this.pointTo(this.low), End: () => this.pointTo(this.high),
      };
      this.svg.addEventListener("keydown", (event) => {
        if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        this.pointerY = undefined;
        keys[event.key]();
      });
    }
  }

  let axis = "epochs";
  const known = (name) => data.charts.some((chart) => chart.series.some((one) => one[name].some((x) => x !== null)));
  if (!known(axis)) axis = "iterations";

  // Return the index of the last place that is not right of x; places may be unknown, and are in order.
  const indexAt = (places, x) => {
    let [low, high] = [0, places.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (places[middle] !== null && places[middle] > x) high = middle - 1;
      else low = middle;
    }
    return low + 1 < places.length && Math.abs(places[low + 1] - x) < Math.abs(places[low] - x) ? low + 1 : low;
  };

  const drawChart = (figure, chart) => {
    const label = (one) => (several ? `${data.runs[one.run]} ${one.label}` : one.label);
    // Where several lines of one run share a chart, each has its own dash.
    const lines = new Map();
    for (const one of chart.series.filter((one) => one.kind !== "raw")) lines.set(one, [...lines.keys()].filter((other) => other.run === one.run).length);
    const dash = (one) => DASHES[((lines.get(one) || 0) + (several ? one.run : 0)) % DASHES.length];
    const paint = (frame) => {
      const { box, low, high } = frame;
      const inside = (one, index) => one[axis][index] !== null && one[axis][index] >= low && one[axis][index] <= high;
      const values = chart.series.flatMap((one) => one.values.filter((value, index) => value !== null && inside(one, index)));
      const shown = values.concat(frame.view ? [] : chart.published.map((one) => one.value));
      let [bottom, top] = shown.reduce(([least, most], one) => [Math.min(least, one), Math.max(most, one)], [Infinity, -Infinity]);
      if (!Number.isFinite(bottom)) [bottom, top] = [0, 1];
      if (chart.id === "speed" && !frame.view) bottom = 0;
      const room = (top - bottom || Math.abs(top) || 1) * 0.06;
      [bottom, top] = [bottom < 0 || bottom - room > 0 ? bottom - room : 0, top + room];
      const y = (value) => box.bottom - ((value - bottom) / (top - bottom)) * (box.bottom - box.top);
      for (const one of ticks(bottom, top, 5)) {
        svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(one), y2: y(one) }, frame.svg);
        svg("text", { x: box.left - 6, y: y(one) + 4, "text-anchor": "end" }, frame.svg, show(one));
      }
      let labelled = -Infinity; // names of marks do not overlap
      const names = [];
      for (const one of chart.marks) {
        if (one[axis] === null || one[axis] < low || one[axis] > high) continue;
        const px = frame.x(one[axis]);
        svg("line", { class: `mark ${one.what}`, x1: px, x2: px, y1: box.top, y2: box.bottom }, frame.svg);
        const text = one.what === "join" ? one.name : one.what;
        const room = text.length * 6.5 + 8;
        const isLast = px + room > box.right; // then its name is on the left
        if ((isLast ? px - room : px) < labelled) continue;
        names.push([isLast ? px - 3 : px + 3, isLast ? "end" : "start", text]);
        labelled = px + room;
      }
      const clip = svg("svg", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, viewBox: `${box.left} ${box.top} ${box.right - box.left} ${box.bottom - box.top}` }, frame.svg);
      for (const one of chart.published) svg("line", { class: `published c${one.run}`, x1: box.left, x2: box.right, y1: y(one.value), y2: y(one.value) }, clip);
      for (const one of chart.series) {
        let [path, down, dots] = ["", false, ""];
        one.values.forEach((value, index) => {
          const place = one[axis][index];
          if (value === null || place === null) return void (down = false);
          const at = `${frame.x(place).toFixed(1)} ${y(value).toFixed(1)}`;
          path += `${down ? "L" : "M"}${at}`;
          down = true;
          if (one.kind === "dots" && one.values.length < 200) dots += `M${at}m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0`;
        });
        svg("path", { class: `series ${one.kind} c${one.run}`, d: path, "stroke-dasharray": one.kind === "raw" ? "" : dash(one) }, clip);
        if (dots) svg("path", { class: `points c${one.run}`, d: dots }, clip);
      }
      for (const [x, anchor, text] of names) svg("text", { class: "place", x, y: box.top + 10, "text-anchor": anchor }, frame.svg, text);
    };
    const read = (value) => {
      const rows = chart.series.map((one) => {
        const index = indexAt(one[axis], value);
        return `${label(one)}: ${show(one.values[index])}`;
      });
      const first = chart.series[0];
      const index = indexAt(first[axis], value);
      const where = [`iteration ${show(first.iterations[index])}`];
      if (first.epochs[index] !== null) where.push(`epoch ${show(first.epochs[index])}`);
      if (first.hours[index] !== null) where.push(clock(first.hours[index] * 3600));
      const published = chart.published.map((one) => `${several ? `${data.runs[one.run]} ` : ""}reported: ${show(one.value)}`);
      return [where.join(", "), ...rows, ...published].join("\n");
    };
    const range = () => {
      const places = chart.series.flatMap((one) => one[axis].filter((place) => place !== null));
      const [low, high] = places.reduce(([least, most], one) => [Math.min(least, one), Math.max(most, one)], [Infinity, -Infinity]);
      return high > low ? [low, high] : Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
    };
    const stops = (frame) => {
      const places = [...new Set(chart.series.flatMap((one) => one[axis].filter((place) => place !== null && place >= frame.low && place <= frame.high)))].sort((a, b) => a - b);
      const every = Math.max(1, Math.floor(places.length / 200)); // a key press moves by a visible distance
      return places.filter((_, index) => index % every === 0);
    };
    const frame = new Frame(figure, figure.querySelector("figcaption").textContent, {
      paint, read, range, stops, ticks, left: () => 56, height: (width) => (width < 480 ? 230 : 280),
    });
    const legend = html("ul", { class: "legend" }, figure);
    for (const one of chart.series) {
      const row = html("li", {}, legend);
      const sample = svg("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, row);
      svg("path", { class: `series ${one.kind} c${one.run}`, d: "M0 4H26", "stroke-dasharray": one.kind === "raw" ? "" : dash(one) }, sample);
      row.append(label(one) + (one.measured > one.values.length ? ` (${one.values.length.toLocaleString("en")} of ${one.measured.toLocaleString("en")} points)` : ""));
    }
    for (const one of chart.published) {
      const row = html("li", {}, legend);
      const sample = svg("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, row);
      svg("path", { class: `published c${one.run}`, d: "M0 4H26" }, sample);
      row.append(`${several ? `${data.runs[one.run]} ` : ""}reported by the source: ${show(one.value)}`);
    }
    return frame;
  };

  const SIGNS = { failed: "✕", lost: "?", interrupted: "‖", open: "…", finished: "" };
  const drawTimeline = (figure, timeline) => {
    const ROW = 26;
    const all = timeline.rows.flatMap((row) => row.spans);
    const end = Math.max(1, ...all.map((one) => one.end), ...timeline.incidents.map((one) => one.at));
    const at = (value, frame) => {
      const row = frame.pointerY === undefined ? null : Math.floor((frame.pointerY - frame.box.top) / ROW);
      const rows = timeline.rows[row] ? [timeline.rows[row]] : timeline.rows;
      const near = (frame.high - frame.low) / 150;
      return rows.flatMap((one) => one.spans.filter((span) => span.begin <= value + near && span.end >= value - near).map((span) => [one, span]));
    };
    const paint = (frame) => {
      const { box } = frame;
      timeline.rows.forEach((row, index) => {
        const y = box.top + index * ROW;
        const most = Math.floor((box.left - 8) / 6.2);
        const name = row.label.length > most ? `${row.label.slice(0, most - 1)}…` : row.label;
        svg("text", { x: 0, y: y + 16 }, frame.svg, name);
        for (const one of row.spans) {
          const [x0, x1] = [Math.max(box.left, frame.x(one.begin)), Math.min(box.right, frame.x(one.end))];
          if (x1 < box.left || x0 > box.right) continue;
          const width = Math.max(2, x1 - x0);
          svg("rect", { class: `span ${one.kind} ${one.outcome} tint${one.tint}`, x: x0, y: y + 3, width, height: ROW - 7, rx: 2 }, frame.svg);
          if (one.outcome !== "finished") {
            let d = "";
            for (let x = x0; x < x0 + width - 8; x += 9) d += `M${x.toFixed(1)} ${y + ROW - 5}l8 -${ROW - 9}`;
            svg("path", { class: "hatch", d }, frame.svg);
          }
          const text = `${SIGNS[one.outcome]} ${one.name}`.trim();
          if (width > text.length * 6.8 + 8) svg("text", { class: "in", x: x0 + 5, y: y + 17 }, frame.svg, text);
        }
      });
      for (const one of timeline.incidents) {
        const x = frame.x(one.at);
        if (x < box.left || x > box.right || one.action) continue;
        svg("text", { class: "bad", x, y: box.bottom - 2, "text-anchor": "middle" }, frame.svg, "✕");
      }
    };
    const read = (value, frame) => {
      const spans = at(value, frame).slice(0, 6).map(([row, one]) => {
        const what = one.outcome === "finished" ? one.name : `${one.name}, ${one.outcome}`;
        return `${what}: ${clock(one.begin)} to ${clock(one.end)}\n${row.hosts}${one.detail ? `\n${one.detail}` : ""}`;
      });
      const near = (frame.high - frame.low) / 150;
      const incidents = timeline.incidents.filter((one) => Math.abs(one.at - value) <= near).slice(0, 4);
      return [clock(value), ...spans, ...incidents.map((one) => `${one.action ? "↻" : "✕"} ${one.what}`)].join("\n");
    };
    const stops = () => [...new Set(all.map((one) => (one.begin + one.end) / 2).concat(timeline.incidents.map((one) => one.at)))].sort((a, b) => a - b);
    new Frame(figure, "Timeline of the hosts", {
      paint, read, stops, ticks: clockTicks, label: clock, range: () => [0, end],
      left: (width) => (width < 480 ? 92 : 170), height: () => timeline.rows.length * ROW + 44,
    });
    const legend = html("ul", { class: "legend" }, figure);
    const kinds = { data: "data", training: "training", evaluation: "evaluation" };
    for (const kind of Object.keys(kinds).filter((kind) => all.some((one) => one.kind === kind))) {
      const row = html("li", {}, legend);
      svg("rect", { class: `span ${kind}`, width: 26, height: 8 }, svg("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, row));
      row.append(kinds[kind]);
    }
    for (const outcome of Object.keys(SIGNS).filter((one) => SIGNS[one] && all.some((span) => span.outcome === one)))
      html("li", {}, legend, `${SIGNS[outcome]} ${outcome}`);
    if (timeline.left_out) html("li", {}, legend, `${timeline.left_out} more groups of hosts are not drawn`);
  };

  for (const figure of document.querySelectorAll("[data-timeline]")) drawTimeline(figure, data.timelines[figure.dataset.timeline]);
  const charts = [...document.querySelectorAll("[data-chart]")].map((figure) => drawChart(figure, data.charts[figure.dataset.chart]));

  const buttons = [...document.querySelectorAll("[data-axis]")];
  const choose = (name) => {
    axis = name;
    for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.axis === name));
    for (const one of document.querySelectorAll("[data-over]")) one.textContent = `over ${name}`;
    for (const chart of charts) [chart.view, chart.cursor] = [null, null], chart.draw();
  };
  for (const one of buttons) {
    one.hidden = !known(one.dataset.axis);
    one.addEventListener("click", () => choose(one.dataset.axis));
  }
  if (charts.length) choose(axis);

  const theme = document.getElementById("theme");
  const NEXT = { auto: "dark", dark: "light", light: "auto" };
  let chosen = "auto";
  theme.addEventListener("click", () => {
    chosen = NEXT[chosen];
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    theme.textContent = `Theme: ${chosen}`;
  });

  let width = window.innerWidth;
  const resized = () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    for (const redraw of redraws) redraw();
  };
  window.addEventListener("resize", resized);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
