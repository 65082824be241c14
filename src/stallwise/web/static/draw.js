// Elements and pictures. Text only ever goes in as text, so nothing that a record says can become markup.

const SVG = 'http://www.w3.org/2000/svg';

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map(String_));
  return element;
}

const String_ = (child) => child instanceof Node ? child : document.createTextNode(String(child));

function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map(String_));
  return element;
}

export function table(caption, heads, rows, foot = null) {
  const cell = (tag, value, scope) => value instanceof Element && /^T[HD]$/.test(value.tagName)
    ? value : make(tag, scope ? { scope } : {}, value);
  const line = (cells) => make('tr', {}, ...cells.map((value, i) => i ? cell('td', value) : cell('th', value, 'row')));
  return make('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': caption },
    make('table', {}, make('caption', {}, caption),
      heads ? make('thead', {}, make('tr', {}, ...heads.map((head) => cell('th', head, 'col')))) : null,
      make('tbody', {}, ...rows.map(line)),
      foot ? make('tfoot', {}, line(foot)) : null));
}

export const number = (text) => make('td', { class: 'n' }, text);

// A bar of pieces, each with its share of the width; its numbers stand beside it.
export function bar(pieces) {
  const drawn = shape('svg', { class: 'bar', 'aria-hidden': 'true', width: '100%', height: 16 },
    shape('rect', { class: 'track', x: '0%', y: 0, width: '100%', height: 16, rx: 2 }));
  let start = 0;
  for (const { share, kind } of pieces) {
    const width = Math.min(Math.max(share, 0.004), Math.max(0, 1 - start));
    drawn.append(shape('rect', { class: kind, x: `${100 * start}%`, y: 0, width: `${100 * width}%`, height: 16, rx: 2 }));
    start += share;
  }
  return drawn;
}

// One part of a step: it begins where the one above ends.
export function stair(start, share, kind) {
  const drawn = bar([]);
  const width = Math.max(share, 0.004);
  drawn.append(shape('rect', {
    class: kind, x: `${100 * Math.min(start, 1 - width)}%`, y: 0, width: `${100 * width}%`, height: 16, rx: 2,
  }));
  return drawn;
}

const WIDTH = 760, HEIGHT = 300, LEFT = 64, RIGHT = 744, TOP = 20, FLOOR = 254;

function axis(values, begin, end, logarithmic) {
  let low = Math.min(...values), high = Math.max(...values);
  if (logarithmic) [low, high] = [Math.log10(low) - 0.04, Math.log10(high) + 0.04];
  if (!(high > low)) high = low + 1;
  const at = (value) => {
    const raw = logarithmic ? Math.log10(Math.max(value, 1e-300)) : value;
    return begin + (end - begin) * Math.min(1, Math.max(0, (raw - low) / (high - low)));
  };
  const ticks = [];
  if (logarithmic) {
    const every = high - low < 3.2 ? [1, 2, 5] : [1];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
      for (const digit of every) {
        const tick = digit * 10 ** power;
        if (Math.log10(tick) >= low && Math.log10(tick) <= high) ticks.push(tick);
      }
    }
  } else {
    for (let i = 0; i <= 4; i += 1) ticks.push(low + (high - low) * i / 4);
  }
  const step = Math.ceil(ticks.length / 9);
  return { at, ticks: ticks.filter((_, i) => i % step === 0) };
}

function frame(x, y, showX, showY, nameX, nameY) {
  const drawn = [];
  for (const tick of x.ticks) {
    drawn.push(shape('line', { class: 'grid', x1: x.at(tick), y1: TOP, x2: x.at(tick), y2: FLOOR }));
    drawn.push(shape('text', { x: x.at(tick), y: FLOOR + 18, 'text-anchor': 'middle' }, showX(tick)));
  }
  for (const tick of y.ticks) {
    drawn.push(shape('line', { class: 'grid', x1: LEFT, y1: y.at(tick), x2: RIGHT, y2: y.at(tick) }));
    drawn.push(shape('text', { x: LEFT - 8, y: y.at(tick) + 4, 'text-anchor': 'end' }, showY(tick)));
  }
  drawn.push(shape('text', { x: RIGHT, y: HEIGHT - 6, 'text-anchor': 'end' }, nameX));
  drawn.push(shape('text', { x: LEFT + 6, y: TOP - 6 }, nameY));
  return drawn;
}

function picture(title, words, shapes, height = HEIGHT) {
  const key = `picture-${(picture.count = (picture.count || 0) + 1)}`;
  return shape('svg', {
    class: 'picture', role: 'img', viewBox: `0 0 ${WIDTH} ${height}`, 'aria-labelledby': `${key}-title ${key}-words`,
  }, shape('title', { id: `${key}-title` }, title), shape('desc', { id: `${key}-words` }, words), ...shapes);
}

const points = (xs, ys, x, y) => xs.map((value, i) => `${x.at(value).toFixed(1)},${y.at(ys[i]).toFixed(1)}`).join(' ');

export const hours = (seconds) => seconds >= 3600 ? `${+(seconds / 3600).toPrecision(2)} h`
  : seconds >= 60 ? `${+(seconds / 60).toPrecision(2)} min` : `${+seconds.toPrecision(2)} s`;
const count = (value) => Math.round(value).toLocaleString('en');
const percent = (value) => `${Math.round(100 * value)} %`;

// Efficiency over numbers of GPUs, with its interval; the position of the sliders has a ring.
export function scaling(curve) {
  const gpus = curve.points.map((point) => point.gpus);
  const x = axis(gpus.map((value) => value), LEFT, RIGHT, true), y = axis([0, 1], FLOOR, TOP, false);
  x.ticks = gpus.filter((value) => Number.isInteger(Math.log2(value)));
  const of = (name) => curve.points.map((point) => point[name]);
  const band = `${points(gpus, of('high'), x, y)} ${points([...gpus].reverse(), of('low').reverse(), x, y)}`;
  const asked = curve.points.find((point) => point.gpus === curve.asked);
  const last = curve.points[curve.points.length - 1];
  return picture('Efficiency over numbers of GPUs', `${count(last.gpus)} GPUs reach ${last.shown} of their speed alone.`, [
    ...frame(x, y, count, percent, 'GPUs', 'efficiency'),
    shape('polygon', { class: 'band', points: band }),
    shape('polyline', { class: 'line', points: points(gpus, of('efficiency'), x, y) }),
    ...(asked ? [shape('circle', { class: 'ideal', cx: x.at(asked.gpus), cy: y.at(asked.efficiency), r: 7 })] : []),
  ]);
}

// Time against cost, both by their logarithm; the front as stairs.
export function front(found, chosen) {
  const dots = found.points;
  const x = axis(dots.map((dot) => dot[0] / 3600), LEFT, RIGHT, true), y = axis(dots.map((dot) => dot[1]), FLOOR, TOP, true);
  const place = (row) => [x.at(row.time_s / 3600), y.at(row.usd)];
  const corners = [];
  found.front.forEach((row, i) => {
    const [across, down] = place(row);
    if (i) corners.push(`${across.toFixed(1)},${place(found.front[i - 1])[1].toFixed(1)}`);
    corners.push(`${across.toFixed(1)},${down.toFixed(1)}`);
  });
  const drawn = frame(x, y, (tick) => `${tick.toLocaleString('en')} h`, (tick) => `$${tick.toLocaleString('en')}`, 'time', 'cost');
  for (const [time, usd, spot, name] of dots) {
    drawn.push(shape('circle', { class: spot ? 'lost' : 'fleet', cx: x.at(time / 3600), cy: y.at(usd), r: 3 }, shape('title', {}, name)));
  }
  drawn.push(shape('polyline', { class: 'front', points: corners.join(' ') }));
  for (const row of found.front) {
    const [cx, cy] = place(row);
    drawn.push(shape('circle', { class: 'edge', cx, cy, r: 4 }, shape('title', {}, `${row.fleet}: ${row.time}, ${row.cost}`)));
  }
  if (chosen) {
    const [cx, cy] = place(chosen);
    drawn.push(shape('circle', { class: 'pick', cx, cy, r: 7 }));
    drawn.push(shape('text', { x: Math.min(cx + 12, RIGHT - 160), y: Math.max(cy - 12, TOP + 14) }, chosen.fleet));
  }
  return picture('Time and cost of fleets', `${dots.length} fleets by time and cost. ${found.verdict}`, drawn);
}

// A predicted step, lane by lane; under what is on the critical path runs a line.
export function overTime(found) {
  const left = 92, lane = 30, top = 8, thick = 16;
  const scale = (WIDTH - left) / found.step_s, floor = top + lane * found.lanes.length;
  const drawn = [];
  found.lanes.forEach(({ name, slots }, place) => {
    const y = top + lane * place;
    drawn.push(shape('rect', { class: 'track', x: left, y, width: WIDTH - left, height: thick, rx: 2 }), shape('text', { class: 'lane', x: 0, y: y + 13 }, name));
    for (const slot of slots) {
      const x = left + slot.start_s * scale, width = Math.max(1, (slot.end_s - slot.start_s) * scale);
      drawn.push(shape('rect', { class: slot.class, x, y, width, height: thick }, shape('title', {}, slot.words)));
      if (slot.critical) drawn.push(shape('line', { class: 'critical', x1: x, y1: y + thick + 4, x2: x + width, y2: y + thick + 4 }));
    }
  });
  drawn.push(shape('line', { class: 'axis', x1: left, y1: floor, x2: WIDTH, y2: floor }),
    shape('text', { x: left, y: floor + 16 }, 'batch taken'), shape('text', { x: WIDTH, y: floor + 16, 'text-anchor': 'end' }, found.end));
  return picture('A step over time', found.words, drawn, floor + 22);
}

// Which colour is what, in the order of the lanes.
export function legend(found) {
  const kinds = new Map(found.lanes.flatMap(({ slots }) => slots.map((slot) => [slot.kind, slot.class])));
  return [...kinds].map(([kind, colour]) => make('span', {}, make('span', { class: `swatch ${colour}` }), kind));
}

export function distribution(found) {
  if (!found.values.length) return make('p', {}, 'No job ended.');
  const known = found.values.filter((value) => value > 0);
  const x = axis(known.length ? known : [1, 10], LEFT, RIGHT, true), y = axis([0, 1], FLOOR, TOP, false);
  return picture(`Part of the jobs over ${found.name}`, found.words, [
    ...frame(x, y, hours, percent, found.name, 'part of the jobs'),
    shape('polyline', { class: 'line', points: points(found.values, found.levels, x, y) }),
  ]);
}

export function timeline(found) {
  if (!found.time_s.length) return make('p', {}, found.words);
  const x = axis(found.time_s, LEFT, RIGHT, false), y = axis([0, ...found.inside], FLOOR, TOP, false);
  return picture('Jobs over time', found.words, [
    ...frame(x, y, hours, count, 'time', 'jobs there; orange: not begun'),
    shape('polyline', { class: 'line', points: points(found.time_s, found.inside, x, y) }),
    shape('polyline', { class: 'line second', points: points(found.time_s, found.waiting, x, y) }),
  ]);
}
