// Loss and throughput of one job, by uPlot, with a mark at each event that cost time.

import { byId, el, reconcile, segmented, text } from "./dom.js";
import { clock, count, plural, rate, significant } from "./format.js";

const HEIGHT = 118;
const gap = (value) => (value == null || !Number.isFinite(value) ? null : value);

export class Curves {
  constructor() {
    this.by = "time";
    this.scale = "linear"; // of the loss
    this.series = null;
    this.other = null; // the series of another job, whose loss is drawn beside this one's, by step
    this.events = [];
    this.drawn = {};
    this.pressBy = segmented(byId("curves-by"), (value) => {
      this.by = value;
      this.redraw();
    });
    segmented(byId("curves-scale"), (value) => {
      this.scale = value;
      this.redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    new ResizeObserver(() => this.resize()).observe(byId("loss-chart"));
  }

  show(series, events) {
    this.events = (events ?? []).filter((event) => event.pause_ms != null);
    const names = Object.keys(series.metrics ?? {});
    const known = this.series !== null && this.drawn.loss && names.every((name) => this.drawn[`metric ${name}`]);
    this.series = series;
    byId("curves-empty").hidden = series.time.length > 0;
    if (!known) this.redraw();
    else {
      this.drawn.loss.setData(this.lossData());
      this.drawn.speed.setData(this.speedData());
      for (const name of names) this.drawn[`metric ${name}`].setData(this.metricData(name));
    }
    this.showValues(null);
  }

  /** Draw another job's loss beside this one's: both over steps, since they ran at other times. */
  compare(series) {
    this.other = series;
    if (series && this.by !== "step") {
      this.by = "step";
      this.pressBy("step");
    }
    this.redraw();
  }

  clear() {
    this.series = this.other = null;
    reconcile(byId("metrics"), [], String, null, null);
    for (const chart of Object.values(this.drawn)) chart.destroy();
    this.drawn = {};
    byId("curves-empty").hidden = false;
    text(byId("loss-now"), "");
    text(byId("speed-now"), "");
  }

  lossData() {
    const shown = (value) => (this.scale === "log" && !(value > 0) ? null : gap(value));
    const own = [this.series[this.by], this.series.loss.map(shown)];
    if (!this.other || this.by !== "step") return own;
    return uPlot.join([own, [this.other.step, this.other.loss.map(shown)]]);
  }

  metricData(name) {
    const metric = this.series.metrics[name];
    return [metric[this.by], metric.value.map(gap)];
  }

  speedData() {
    return [this.series[this.by], this.series.examples_per_second.map(gap), this.series.devices.map(gap)];
  }

  redraw() {
    if (!this.series) return;
    for (const chart of Object.values(this.drawn)) chart.destroy();
    const colours = readColours();
    const line = { width: 1.5, points: { show: false } };
    const compared = this.other && this.by === "step" ? [{ ...line, stroke: colours.mark, spanGaps: true }] : [];
    const scales = this.scale === "log" ? { y: { distr: 3 } } : {};
    this.drawn.loss = new uPlot(
      this.options(
        colours,
        [{ ...line, stroke: colours.loss, spanGaps: compared.length > 0 }, ...compared],
        scales,
        (value) => (value == null ? "" : significant(value, 3)),
      ),
      this.lossData(),
      byId("loss-chart"),
    );
    this.drawMetrics(colours);
    const devices = {
      scale: "devices",
      stroke: colours.devices,
      fill: colours.devicesFill,
      width: 1,
      points: { show: false },
      paths: uPlot.paths.stepped({ align: 1 }),
    };
    this.drawn.speed = new uPlot(
      this.options(
        colours,
        [{ ...line, stroke: colours.speed }, devices],
        {
          devices: { range: (_, least, most) => [0, Math.max(1, most * 1.15)] },
          y: { range: (_, least, most) => [0, (most || 1) * 1.08] },
        },
        rate,
      ),
      this.speedData(),
      byId("speed-chart"),
    );
  }

  /** A chart for every number that the job reports by name. */
  drawMetrics(colours) {
    const names = Object.keys(this.series.metrics ?? {});
    reconcile(
      byId("metrics"),
      names,
      String,
      (name) =>
        el(
          "div",
          { "data-metric": name },
          el("header", {}, el("h3", {}, name), el("span", { class: "muted" })),
          el("div", { class: "curve", role: "img", "aria-label": `${name} over time` }),
        ),
      () => {},
    );
    for (const name of names) {
      const holder = byId("metrics").known.get(name);
      this.drawn[`metric ${name}`] = new uPlot(
        this.options(colours, [{ stroke: colours.loss, width: 1.5, points: { show: true, size: 4 } }], {}, (value) =>
          significant(value, 3),
        ),
        this.metricData(name),
        holder.lastChild,
      );
      text(holder.querySelector("header span"), significant(this.series.metrics[name].value.at(-1), 5));
    }
  }

  options(colours, series, scales, label) {
    const axis = {
      stroke: colours.muted,
      font: "11px system-ui, sans-serif",
      grid: { stroke: colours.grid, width: 1 },
      ticks: { show: false },
    };
    const x = {
      ...axis,
      space: 70,
      size: 22,
      gap: 2,
      values: (_, values) => values.map((value) => this.labelX(value, values)),
    };
    const y = { ...axis, size: 46, gap: 4, space: 26, values: (_, values) => values.map(label) };
    return {
      width: byId("loss-chart").clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "job" }, y: false, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: this.by === "time" }, ...scales },
      series: [{}, ...series],
      axes: [x, y],
      padding: [6, 16, 0, 0],
      hooks: {
        drawClear: [(chart) => this.pauses(chart, colours), (chart) => this.marks(chart, colours)],
        setCursor: [(chart) => this.showValues(this.indexOf(chart.data[0][chart.cursor.idx]))],
      },
    };
  }

  labelX(value, values) {
    if (this.by === "step") return count(value);
    return clock(value, values.length > 1 && values[1] - values[0] < 60);
  }

  marks(chart, colours) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.strokeStyle = colours.mark;
    for (const event of this.events) {
      const at = Math.round(chart.valToPos(event[this.by] ?? NaN, "x", true));
      if (!(at >= bbox.left && at <= bbox.left + bbox.width)) continue;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Over time, a band from a step on no device to the next one. */
  pauses(chart, colours) {
    if (this.by !== "time") return;
    const { ctx, bbox } = chart;
    const { time, devices } = this.series;
    const inside = (at) => Math.min(Math.max(chart.valToPos(at, "x", true), bbox.left), bbox.left + bbox.width);
    ctx.save();
    ctx.strokeStyle = colours.muted;
    ctx.setLineDash([3 * devicePixelRatio, 2 * devicePixelRatio]);
    ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    devices.forEach((number, index) => {
      if (number !== 0 || index + 1 >= time.length) return;
      const [left, right] = [inside(time[index]), inside(time[index + 1])];
      ctx.fillStyle = colours.devicesFill;
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.strokeRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = colours.muted;
      if (right - left > 45 * devicePixelRatio) ctx.fillText("paused", (left + right) / 2, bbox.top + bbox.height / 2);
    });
    ctx.restore();
  }

  /** Where this job's own series is at *x*: a compared one, or a metric, has points of its own. */
  indexOf(x) {
    if (x == null) return null;
    const after = this.series[this.by].findIndex((value) => value >= x);
    return after === -1 ? null : after;
  }

  /** The values under the cursor, or the last ones. */
  showValues(index) {
    if (!this.series?.time.length) return;
    const at = index ?? this.series.time.length - 1;
    const { step, loss, examples_per_second: speed, devices } = this.series;
    text(byId("loss-now"), `${significant(loss[at], 5)} at step ${count(step[at])}`);
    text(byId("speed-now"), `${rate(speed[at])} examples/s on ${plural(devices[at], "device")}`);
  }

  resize() {
    const width = byId("loss-chart").clientWidth;
    if (width < 50) return;
    for (const chart of Object.values(this.drawn)) if (chart.width !== width) chart.setSize({ width, height: HEIGHT });
  }
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = {
    muted: "--muted",
    grid: "--grid",
    loss: "--curve",
    speed: "--curve",
    devices: "--area-line",
    devicesFill: "--area",
    mark: "--mark",
  };
  return Object.fromEntries(
    Object.entries(names).map(([name, property]) => [name, style.getPropertyValue(property).trim()]),
  );
}
