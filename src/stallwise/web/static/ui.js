// The page: asks the server, puts the answers where they belong. It works nothing out by itself.

import { bar, distribution, front, legend, make, number, overTime, scaling, stair, table, timeline } from './draw.js';

const view = document.getElementById('view');
const trouble = document.getElementById('trouble');
const KINDS = { compute: 'compute', exchange: 'network', copy: 'copy', data: 'prep' };

class Stale extends Error {}

async function ask(path, query = {}) {
  const asked = location.hash;
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== '') words.append(name, one);
  }
  const response = await fetch(`${path}?${words}`);
  const text = await response.text();
  // Who has gone on to another view does not want this one back.
  if (asked !== location.hash) throw new Stale();
  let found;
  try { found = JSON.parse(text); } catch { throw new Error(text || 'The server does not answer.'); }
  if (!response.ok || found.cannot) throw new Error(found.error || found.cannot || 'The server does not answer.');
  return found;
}

const link = (path, query) => `${path}?${new URLSearchParams(Object.entries(query).filter(([, v]) => v !== null && v !== undefined && v !== ''))}`;
const to = (...words) => `#/${words.map(encodeURIComponent).join('/')}`;

function show(title, ...children) {
  document.title = title === 'Runs' ? 'Stallwise' : `${title} · Stallwise`;
  view.replaceChildren(make('h1', {}, title), ...children.filter((child) => child !== null));
}

const VIEWS = { '': list, run, compare, simulation, jobs };

async function route() {
  trouble.hidden = true;
  const hash = location.hash;
  delete view.dataset.shown;
  const [name = '', ...words] = location.hash.replace(/^#\//, '').split('/').map(decodeURIComponent);
  try {
    await (VIEWS[name] || list)(...words);
  } catch (error) {
    if (error instanceof Stale) return;
    trouble.textContent = error.message;
    trouble.hidden = false;
  }
  view.dataset.shown = hash;
  if (document.activeElement === document.body) view.focus({ preventScroll: true });
}

// --- the list -------------------------------------------------------------------------------------------------------

let figuresAsked = 0;

async function list() {
  const mine = ++figuresAsked;
  const found = await ask('api/runs');
  document.getElementById('folder').textContent = found.folder;
  const chosen = new Set();
  const button = make('button', { type: 'button', disabled: true, onclick: () => { location.hash = to('compare', ...chosen); } }, 'Compare two runs');
  const said = make('span', { class: 'dim', role: 'status' }, `${found.runs.length.toLocaleString('en')} runs`);
  const search = make('input', { type: 'search', 'aria-label': 'Find runs', placeholder: 'find', oninput: () => filter() });
  const cells = new Map();
  const rows = found.runs.map((one) => {
    const box = make('input', { type: 'checkbox', 'aria-label': `compare ${one.key}`, onchange: () => pick(one.key, box) });
    const later = { step: make('td', { class: 'n' }, '…'), speed: make('td', { class: 'n' }), binds: make('td'), split: make('td', { class: 'chart' }) };
    const row = make('tr', {}, make('th', { scope: 'row' }, make('a', { href: to('run', one.key) }, one.key), make('small', {}, one.script.split('/').pop())),
      make('td', {}, one.created.replace('T', ' ').slice(0, 16)),
      make('td', {}, one.ranks, make('small', {}, one.device)), later.step, later.speed, later.split, later.binds,
      make('td', {}, one.state), make('td', {}, box));
    cells.set(one.key, later);
    return { row, words: `${one.key} ${one.script} ${one.device} ${one.state}`.toLowerCase() };
  });
  function pick(key, box) {
    if (box.checked) chosen.add(key); else chosen.delete(key);
    button.disabled = chosen.size !== 2;
  }
  function filter() {
    const words = search.value.toLowerCase();
    let count = 0;
    for (const one of rows) { one.row.hidden = !one.words.includes(words); count += one.row.hidden ? 0 : 1; }
    said.textContent = `${count.toLocaleString('en')} runs`;
  }
  const heads = ['run', 'made', 'where', 'step', 'speed', 'split', 'binds', 'state', 'compare'];
  const files = [...found.simulations.map((key) => [key, 'simulation', 'policies side by side']), ...found.jobs.map((key) => [key, 'jobs', 'jobs of a simulation'])];
  show('Runs',
    make('div', { class: 'row' }, search, button, said),
    rows.length ? make('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': 'Runs' }, make('table', { class: 'list' },
      make('caption', {}, 'Newest first. Step, speed and split are measured.'),
      make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', { scope: 'col', class: head === 'step' || head === 'speed' ? 'n' : null }, head)))),
      make('tbody', {}, ...rows.map((one) => one.row)))) : make('p', {}, 'No run lies here. Make one: stallwise profile train.py'),
    files.length ? make('section', {}, make('h2', {}, 'Simulations'), make('ul', {}, ...files.map(([key, name, what]) =>
      make('li', {}, make('a', { href: to(name, key) }, key), ` ${what}`)))) : null,
    found.refused.length ? make('section', {}, make('h2', {}, 'Not shown'), make('ul', {}, ...found.refused.map((one) =>
      make('li', {}, `${one.key}: ${one.why}`)))) : null,
    found.cut ? make('p', {}, 'There are more folders than were looked into; open one further down.') : null);
  fill([...cells], mine);
}

// A few at a time, those in sight first as the list is sorted; a newer list ends it.
async function fill(cells, mine) {
  for (let at = 0; at < cells.length && mine === figuresAsked; at += 20) {
    const some = cells.slice(at, at + 20);
    let found;
    try { found = await ask('api/figures', { run: some.map(([key]) => key) }); } catch { return; }
    for (const [key, later] of some) {
      const one = found[key] || {};
      later.step.textContent = one.step || 'unknown';
      if (one.error) later.step.title = one.error;
      later.speed.textContent = one.speed || '';
      later.binds.textContent = one.binds || '';
      if (one.split && one.split.length) later.split.replaceChildren(bar(one.split.map((part) => ({ share: part.share, kind: part.name }))));
    }
  }
}

// --- a run ----------------------------------------------------------------------------------------------------------

const TABS = [['Where the time goes', 'time'], ['What if', 'whatif'], ['What to rent', 'rent']];

async function run(key, tab = 'time') {
  const facts = await ask('api/run', { run: key });
  const tabs = make('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Views' }, ...TABS.map(([name, word]) =>
    make('button', { type: 'button', role: 'tab', id: `tab-${word}`, 'aria-controls': 'panel', 'aria-selected': String(word === tab), tabindex: word === tab ? 0 : -1,
      onclick: () => { location.hash = to('run', key, word); }, onkeydown: (event) => step(event, word) }, name)));
  function step(event, word) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const next = TABS[(TABS.findIndex((one) => one[1] === word) + move + TABS.length) % TABS.length][1];
    location.hash = to('run', key, next);
    addEventListener('stallwise-shown', () => document.getElementById(`tab-${next}`)?.focus(), { once: true });
  }
  const panel = make('div', { role: 'tabpanel', id: 'panel', 'aria-labelledby': `tab-${tab}` });
  show(key, make('p', { class: 'dim' }, `${facts.script} · ${facts.ranks}, ${facts.device} · ${facts.created.replace('T', ' ').slice(0, 16)} · ${facts.state}`),
    facts.partial ? make('p', { class: 'partial' }, facts.partial) : null, tabs, panel);
  if (tab === 'whatif') await whatif(key, facts, panel);
  else if (tab === 'rent') rent(key, panel);
  else panel.append(make('iframe', { src: link('report/profile', { run: key }), title: `Report of ${key}`, sandbox: '' }));
  dispatchEvent(new Event('stallwise-shown'));
}

// --- sliders --------------------------------------------------------------------------------------------------------

const RATES = [null, 1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200, 7200];
const LIVES = [0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168, 720];
const COUNTS = [...Array.from({ length: 16 }, (_, i) => i + 1), 20, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024];
let position = {};
let instances = null;

function slider(name, label, low, high, value, words, extra = '') {
  const shown = make('output', { for: `s-${name}` });
  const input = make('input', { type: 'range', id: `s-${name}`, min: low, max: high, step: 1, value });
  const tell = () => { shown.textContent = words(+input.value); input.setAttribute('aria-valuetext', words(+input.value)); };
  input.addEventListener('input', tell);
  tell();
  const element = make('div', { class: 'control' }, make('label', { for: `s-${name}` }, label), shown, input, extra ? make('small', {}, extra) : null);
  return { element, input, tell, value: () => +input.value };
}

async function whatif(key, facts, panel) {
  if (!facts.whatif) { panel.append(make('p', { class: 'error' }, facts.why)); return; }
  instances = instances || await ask('api/instances');
  const own = facts.whatif, kept = position[key] || {};
  const nearest = (values, wanted) => Math.max(0, values.findIndex((value) => value === wanted));
  // What a run or a fleet has is on the slider, whatever it is.
  const among = (values, ...more) => [...new Set([...values, ...more.filter(Boolean)])].sort((a, b) => a - b);
  const NODES = among(COUNTS, own.nodes, kept.nodes), HOURS = among(LIVES, kept.life);
  const machine = make('select', { id: 's-instance' }, make('option', { value: '' }, `as measured (${facts.device})`));
  const groups = new Map();
  for (const one of instances) {
    if (!groups.has(one.gpu)) groups.set(one.gpu, make('optgroup', { label: one.gpu }));
    const price = one.usd_per_h === null ? `spot $${one.spot_usd_per_h.toFixed(2)}/h` : `$${one.usd_per_h.toFixed(2)}/h`;
    groups.get(one.gpu).append(make('option', { value: one.key }, `${one.gpus} × ${one.gpu}: ${one.cloud} ${one.name}, ${price}`));
  }
  machine.append(...groups.values());
  machine.value = kept.instance || '';
  const most = () => instances.find((one) => one.key === machine.value)?.gpus || Math.max(16, own.used);
  const nodes = slider('nodes', 'Nodes', 0, NODES.length - 1, nearest(NODES, kept.nodes || own.nodes), (at) => NODES[at].toLocaleString('en'));
  const used = slider('used', 'GPUs of each node', 1, most(), kept.used || own.used, (count) => count);
  const workers = slider('workers', 'Loader workers of each GPU', 0, Math.max(64, own.workers ?? 0), kept.workers ?? own.workers ?? 0,
    (count) => count === own.workers ? `${count}, as measured` : count, own.workers === null ? 'No loader was seen in this run.' : '');
  const cache = slider('cache', 'Data found in memory', -1, 100, kept.cache ?? -1, (part) => part < 0 ? 'as measured' : `${part} %`,
    own.cache ? '' : 'Reading from storage was not measured in this run.');
  const network = slider('network', 'Network between nodes', 0, RATES.length - 1, nearest(RATES, kept.network ?? null), (at) => RATES[at] === null ? 'as it is' : `${RATES[at]} Gb/s`);
  const inside = slider('link', 'Link between the GPUs of a node', 0, RATES.length - 1, nearest(RATES, kept.link ?? null), (at) => RATES[at] === null ? 'as it is' : `${RATES[at]} Gb/s`);
  workers.input.disabled = own.workers === null;
  cache.input.disabled = !own.cache;
  const spot = make('input', { type: 'checkbox', id: 's-spot' });
  const life = slider('life', 'Mean life of a spot machine', 0, HOURS.length - 1, nearest(HOURS, kept.life || 12), (at) => `${HOURS[at]} h`);
  const batch = make('select', { id: 's-batch' }, make('option', { value: '' }, 'each GPU keeps its batch'), make('option', { value: 'kept' }, 'the batch of all together stays'));
  const samples = make('input', { type: 'number', id: 's-samples', min: 1, step: 'any', value: kept.samples || 1e7 });
  const price = make('input', { type: 'number', id: 's-price', min: 0, step: 'any', value: kept.price ?? '' });
  spot.checked = Boolean(kept.spot);
  batch.value = kept.batch || '';
  const labelled = (label, input, hint = '') => make('div', { class: 'control' }, make('label', { for: input.id }, label), input, hint ? make('small', {}, hint) : null);
  const controls = make('form', { class: 'controls', 'aria-label': 'Set-up', onsubmit: (event) => event.preventDefault() },
    labelled('Machines', machine), nodes.element, used.element, workers.element, cache.element, network.element, inside.element,
    labelled('Batch', batch),
    make('div', { class: 'control' }, make('label', { class: 'check' }, spot, ' Spot machines')), life.element,
    labelled('Samples of the whole job', samples), labelled('Dollars per hour of one machine of yours', price),
    make('div', { class: 'row' }, make('button', { type: 'button', onclick: () => { position[key] = {}; location.hash = to('run', key, 'whatif'); route(); } }, 'As measured')));
  const answer = make('div', { class: 'answer' });
  const spoken = make('p', { class: 'spoken visually-hidden', role: 'status' });
  const curve = make('div');
  // Where there is no room beside the sliders, what is spoken is shown below them, in sight while they move.
  panel.append(make('div', { class: 'bench' }, controls, make('div', {}, answer, curve)), spoken);

  let busy = null, again = false, wait = null;
  function query() {
    const rented = machine.value !== '';
    const changed = (control, same, value) => control.input.disabled || value === same ? null : value;
    const share = cache.value();
    return {
      run: key, instance: machine.value,
      nodes: rented ? NODES[nodes.value()] : changed(nodes, own.nodes, NODES[nodes.value()]),
      used: rented ? used.value() : changed(used, own.used, used.value()),
      workers: changed(workers, own.workers, workers.value()),
      cache: cache.input.disabled || share < 0 ? null : share / 100,
      network_gbit: RATES[network.value()], link_gbit: RATES[inside.value()],
      batch: batch.value, spot: rented && spot.checked ? 1 : null, mean_life_h: rented && spot.checked ? HOURS[life.value()] : null,
      samples: samples.value, usd_per_h: rented ? null : price.value,
    };
  }
  function settle() {
    const rented = machine.value !== '';
    used.input.max = most();
    used.tell();
    spot.disabled = !rented;
    life.input.disabled = !rented || !spot.checked;
    price.disabled = rented;
    position[key] = { instance: machine.value, nodes: NODES[nodes.value()], used: used.value(), workers: workers.value(), cache: cache.value(),
      network: RATES[network.value()], link: RATES[inside.value()], life: HOURS[life.value()], spot: spot.checked, batch: batch.value, samples: samples.value, price: price.value };
  }
  // One question at a time; whatever was moved meanwhile is asked next. Spot fleets are answered from few replays while
  // something moves, and from as many as the command line takes once it rests.
  async function update() {
    settle();
    clearTimeout(wait);
    if (busy) { again = true; return; }
    busy = query();
    answer.setAttribute('aria-busy', 'true');
    const began = performance.now();
    let found = null;
    try {
      found = await ask('api/whatif', { ...busy, quick: busy.spot });
      draw(found, busy, performance.now() - began);
    } catch (error) {
      if (error instanceof Stale) return;
      refuse(error);
    }
    const asked = busy;
    busy = null;
    if (again) { again = false; update(); return; }
    if (!found?.rough) answer.removeAttribute('aria-busy');
    wait = setTimeout(() => rest(found, asked), 150);
  }
  async function rest(found, asked) {
    const mine = wait;
    if (found?.rough) {
      const began = performance.now();
      try {
        const exact = await ask('api/whatif', asked);
        if (mine !== wait || busy) return;
        draw(exact, asked, performance.now() - began);
      } catch (error) {
        if (error instanceof Stale || mine !== wait || busy) return;
        refuse(error);
      }
      answer.removeAttribute('aria-busy');
    }
    await draw_curve(mine);
  }
  function refuse(error) {
    // The step of before is no answer any more.
    spoken.textContent = '';
    delete answer.dataset.step;
    answer.replaceChildren(make('p', { class: 'error', role: 'alert' }, error.message));
  }
  async function draw_curve(mine) {
    if (machine.value !== '') { curve.replaceChildren(); return; }
    try {
      const found = await ask('api/curve', query());
      if (mine !== wait || busy) return;
      curve.replaceChildren(make('h2', {}, 'More GPUs'), found.points.length > 1 ? scaling(found) : '', found.ends ? make('p', { class: 'dim' }, found.ends) : '');
    } catch { if (mine === wait && !busy) curve.replaceChildren(); }
  }
  function draw(found, asked, took) {
    spoken.textContent = `Predicted step ${found.step.shown}${found.time ? `, job ${found.time.shown}` : ''}${found.cost ? `, ${found.cost.shown}` : ''}.`;
    answer.replaceChildren(...answered(found), make('p', { class: 'dim' }, `Answered in ${Math.round(took)} ms${found.rough ? ' from a few replays; the rest follows' : ''}.`),
      make('div', { class: 'row' }, asked.instance
        ? make('a', { href: link('skypilot/fleet', asked), download: 'task.yaml' }, 'Download the SkyPilot file')
        : make('a', { href: link('report/whatif', asked), download: 'whatif.html' }, 'Download this as a page')));
    answer.dataset.step = found.step.s;
  }
  for (const input of controls.querySelectorAll('input, select')) input.addEventListener('input', update);
  machine.addEventListener('change', () => { used.input.max = most(); used.input.value = machine.value ? most() : own.used; used.tell(); update(); });
  await update();
}

function tile(name, value, more) {
  return make('div', { class: 'tile', 'data-name': name }, make('dt', {}, name), make('dd', {}, make('strong', {}, value), more || '\u00a0'));
}

function answered(found) {
  let start = 0;
  const rows = found.parts.map((part) => {
    const drawn = stair(start, part.share, KINDS[part.name]);
    start += part.share;
    return [make('th', { scope: 'row' }, make('span', { class: `swatch ${KINDS[part.name]}` }), part.name, make('small', {}, part.means)),
      make('td', { class: 'chart' }, part.percent ? drawn : bar([])), number(part.shown), number(part.percent)];
  });
  return [
    make('p', { class: 'dim' }, found.fleet),
    make('dl', { class: 'tiles' },
      tile('predicted step', found.step.shown, found.step.bounds),
      tile('predicted speed', found.speed || 'unknown', `samples/s${found.speedup ? ` · ${found.speedup}` : ''}`),
      tile('time of the job', found.time ? found.time.shown : 'unknown', found.time ? found.time.bounds : 'say how many samples'),
      tile('cost of the job', found.cost ? found.cost.shown : 'unknown', found.cost ? found.cost.bounds : 'say what a machine costs')),
    table('Each part begins where the one above ends; together they are the predicted step.', ['part', make('td', { class: 'chart' }), make('th', { scope: 'col', class: 'n' }, 'predicted'), make('th', { scope: 'col', class: 'n' }, 'of the step')], rows),
    overTime(found.timeline),
    make('p', { class: 'dim legend' }, ...legend(found.timeline)),
    make('p', { class: 'dim' }, 'When each part of the step runs; the line under a lane is the critical path. ', found.timeline.words),
    make('div', { class: `verdict ${KINDS[found.binds] || ''}` },
      make('p', {}, make('strong', {}, 'Bound by: '), found.bound), make('p', {}, make('strong', {}, 'Critical path: '), found.critical),
      found.as_it_is ? make('p', {}, make('strong', {}, 'As it is: '), found.as_it_is) : null,
      ...found.facts.map(([name, words]) => make('p', {}, make('strong', {}, `${name[0].toUpperCase()}${name.slice(1)}: `), words))),
    found.command ? make('code', { class: 'command', tabindex: 0, role: 'region', 'aria-label': 'The same on the command line' }, found.command)
      : make('p', { class: 'dim' }, 'recommend takes machines as they are listed; with another link or cache it has no such answer.'),
    found.assumed.length ? make('details', {}, make('summary', {}, 'Assumed'), make('ul', {}, ...found.assumed.map((one) => make('li', {}, one)))) : null,
  ].filter(Boolean);
}

// --- what to rent ---------------------------------------------------------------------------------------------------

let wishes = {};

function rent(key, panel) {
  const kept = wishes[key] || { samples: position[key]?.samples || 1e7 };
  const field = (name, label, type = 'number') => make('label', {}, label, make('input', { name, type, min: 0, step: 'any', value: kept[name] ?? '' }));
  const form = make('form', { class: 'row', 'aria-label': 'Wish', onsubmit: (event) => { event.preventDefault(); update(); } },
    field('samples', 'Samples of the whole job'), field('deadline_h', 'Done within hours'), field('budget_usd', 'For at most dollars'),
    field('cloud', 'Cloud', 'text'), field('gpu', 'GPU', 'text'), field('max_nodes', 'Machines at most'),
    make('label', { class: 'check' }, make('input', { name: 'spot', type: 'checkbox', value: 1, checked: Boolean(kept.spot) }), ' also spot, mean life in hours'),
    make('input', { name: 'mean_life_h', type: 'number', min: 0, step: 'any', value: kept.mean_life_h || 12, 'aria-label': 'mean life of a spot machine in hours' }),
    make('label', {}, 'Batch', make('select', { name: 'batch' }, make('option', { value: '' }, 'each GPU keeps its own, 8 times as many in all at most'), make('option', { value: 'scaled', selected: kept.batch === 'scaled' }, 'each GPU keeps its own, without limit'))),
    make('button', {}, 'Ask'));
  const place = make('div', { 'aria-live': 'polite' });
  panel.append(form, place);
  async function update() {
    const query = { run: key, ...Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== '')) };
    if (!query.spot) delete query.mean_life_h;
    wishes[key] = query;
    place.replaceChildren(make('p', { class: 'dim' }, 'Looking at every fleet …'));
    try { draw(await ask('api/recommend', query), query); } catch (error) { place.replaceChildren(make('p', { class: 'error', role: 'alert' }, error.message)); }
  }
  function draw(found, query) {
    const sky = (row, at) => make('a', { href: link('skypilot', at === null ? query : { ...query, place: at }), download: 'task.yaml' }, 'SkyPilot', make('span', { class: 'visually-hidden' }, ` file of ${row.fleet}`));
    const slide = (row) => make('button', { type: 'button', onclick: () => {
      position[key] = { ...(position[key] || {}), instance: row.instance, nodes: row.nodes, used: row.used, spot: row.spot, samples: query.samples,
        batch: '', life: +query.mean_life_h || 12 };
      location.hash = to('run', key, 'whatif');
    } }, 'sliders', make('span', { class: 'visually-hidden' }, ` at ${row.fleet}`));
    const picked = found.pick ? found.pick.place : null;
    const rows = found.front.map((row, at) => [make('th', { scope: 'row' }, row.fleet, at === picked ? make('small', {}, 'the pick') : ''), row.gpus, row.where, number(row.time), number(row.cost), number(row.bounds), row.binds,
      sky(row, at === picked ? null : at), slide(row)]);
    place.replaceChildren(
      make('div', { class: 'verdict compute' }, make('p', {}, make('strong', {}, found.verdict)), found.impossible ? make('p', {}, found.impossible) : '', ...found.now.map((one) => make('p', {}, `Now: ${one}`)), make('p', { class: 'dim' }, `Prices ${found.prices}.`)),
      found.pick ? make('p', {}, make('a', { id: 'sky', href: link('skypilot', query), download: 'task.yaml' }, `Download the SkyPilot file of ${found.pick.fleet}`), ' · ', make('a', { href: link('report/recommend', query), download: 'recommend.html' }, 'this as a page')) : '',
      found.points.length ? front(found, found.pick) : '',
      rows.length ? table('The front: nothing that can be rented is both faster and cheaper.', ['fleet', 'GPUs', 'where', make('th', { scope: 'col', class: 'n' }, 'time'), make('th', { scope: 'col', class: 'n' }, 'cost'), make('th', { scope: 'col', class: 'n' }, '80 %'), 'binds', 'launch', 'try'], rows) : '',
      found.lost.length ? table('Why others lost', ['fleet', make('th', { scope: 'col', class: 'n' }, 'time'), make('th', { scope: 'col', class: 'n' }, 'cost'), 'why'], found.lost.map((one) => [one.fleet, number(one.time), number(one.cost), make('td', { class: 'words' }, one.why)])) : '',
      make('code', { class: 'command', tabindex: 0, role: 'region', 'aria-label': 'The same on the command line' }, found.command),
      make('ul', {}, ...[...found.warnings, ...found.assumed].map((one) => make('li', {}, one))));
  }
  update();
}

// --- two runs -------------------------------------------------------------------------------------------------------

async function compare(a, b) {
  const found = await ask('api/compare', { a, b });
  const split = (name, parts) => [name, make('td', { class: 'chart' }, bar(parts.map((part) => ({ share: part.share, kind: part.name })))),
    make('td', { class: 'words' }, parts.map((part) => `${part.name} ${part.shown} (${part.percent})`).join(', ') || 'unknown')];
  show(`${a} and ${b}`,
    make('p', {}, make('a', { href: to('compare', b, a) }, 'the other way round')),
    found.phases.length ? table('From the first run to the second; a difference counts when its interval leaves out 0.', ['phase', make('th', { scope: 'col', class: 'n' }, a), make('th', { scope: 'col', class: 'n' }, b), make('th', { scope: 'col', class: 'n' }, 'change'), '95 % interval', 'verdict'],
      found.phases.map((one) => [one.phase, number(one.before), number(one.after), number(one.relative), one.bounds, one.verdict])) : make('p', {}, 'The two runs have no measured phase in common.'),
    table('Where a step goes in each', ['run', make('td', { class: 'chart' }), 'parts'], [split(a, found.splits[0]), split(b, found.splits[1])]),
    found.changes.length ? table('What is not the same', ['what', a, b], found.changes.map((one) => [one.what, one.before ?? 'none', one.after ?? 'none'])) : make('p', {}, 'Nothing else differs.'));
}

// --- simulations ----------------------------------------------------------------------------------------------------

async function simulation(key) {
  const found = await ask('api/simulation', { file: key });
  let setting = 0, by = found.columns[0].key, down = false;
  const place = make('div');
  const choice = make('select', { id: 'setting', onchange: () => { setting = +choice.value; draw(); } }, ...found.settings.map((one, at) => make('option', { value: at }, one.name)));
  function draw() {
    const here = found.settings[setting];
    const policies = [...here.policies].sort((a, b) => ((a.figures[by].value ?? Infinity) - (b.figures[by].value ?? Infinity)) * (down ? -1 : 1));
    const most = Math.max(...here.policies.map((one) => one.figures[by].value || 0)) || 1;
    const head = (column) => make('th', { scope: 'col', class: 'n', 'aria-sort': column.key === by ? (down ? 'descending' : 'ascending') : 'none' },
      make('button', { type: 'button', title: column.means, onclick: () => { down = by === column.key && !down; by = column.key; draw(); } }, column.name));
    place.replaceChildren(here.verdict ? make('div', { class: 'verdict compute' }, make('p', {}, here.verdict)) : '',
      table(here.name, ['policy', make('td', { class: 'chart' }), ...found.columns.map(head)],
        policies.map((one) => [one.policy, make('td', { class: 'chart' }, bar([{ share: (one.figures[by].value || 0) / most, kind: 'network' }])),
          ...found.columns.map((column) => make('td', { class: 'n' }, one.figures[column.key].shown, one.figures[column.key].spread ? make('small', {}, one.figures[column.key].spread) : ''))])));
  }
  show(found.trace, make('p', { class: 'dim' }, found.how), make('div', { class: 'row' }, make('label', { for: 'setting' }, 'Cluster and load', choice)), place,
    table('What the columns mean', null, found.columns.map((column) => [column.name, column.means])),
    found.notes.length ? make('ul', {}, ...found.notes.map((note) => make('li', {}, note))) : null);
  draw();
}

async function jobs(key) {
  let query = { file: key, case: 0, by: 'arrival_s', offset: 0 };
  const place = make('div');
  async function draw() {
    const found = await ask('api/jobs', query);
    const choice = make('select', { id: 'case', onchange: () => move({ case: +choice.value, offset: 0 }) }, ...found.cases.map((one, at) => make('option', { value: at, selected: at === found.case }, one)));
    const head = (name) => make('th', { scope: 'col', class: name === 'job_id' ? null : 'n', 'aria-sort': name === query.by ? (query.down ? 'descending' : 'ascending') : 'none' },
      make('button', { type: 'button', onclick: () => move({ by: name, down: query.by === name && !query.down ? 1 : null, offset: 0 }) }, name));
    const shown = (value) => value === null ? 'unknown' : typeof value === 'number' ? (+value.toPrecision(6)).toLocaleString('en') : value;
    place.replaceChildren(make('div', { class: 'row' }, make('label', { for: 'case' }, 'Simulation', choice)),
      make('h2', {}, 'Over time'), timeline(found.timeline), make('p', {}, found.timeline.words),
      ...found.distributions.flatMap((one) => [make('h2', {}, one.name === 'arrival to end' ? 'Completion times' : 'Waiting'), distribution(one), make('p', {}, one.words)]),
      make('h2', {}, 'Jobs'),
      table(`${found.count.toLocaleString('en')} jobs, from ${(found.offset + 1).toLocaleString('en')}`, found.columns.map(head), found.rows.map((row) => row.map((value, at) => at ? number(shown(value)) : shown(value)))),
      make('div', { class: 'row' }, make('button', { type: 'button', disabled: found.offset === 0, onclick: () => move({ offset: Math.max(0, found.offset - 100) }) }, 'earlier'),
        make('button', { type: 'button', disabled: found.offset + 100 >= found.count, onclick: () => move({ offset: found.offset + 100 }) }, 'later')));
  }
  async function move(change) {
    query = { ...query, ...change };
    try { await draw(); } catch (error) { trouble.textContent = error.message; trouble.hidden = false; }
  }
  show(key, place);
  await draw();
}

addEventListener('hashchange', route);
route();
