/* The tour: steps, each with a state of the page and a few sentences. */

const steps = (given && given.steps) || []; // none where this is no tour
function enterStep(step) {
  const one = steps[step];
  const scene = scenes.findIndex((each) => each.name === one.scene);
  const told = one.state || {};
  const T = told.T === 'hard' ? 0 : told.T === 'mean' ? Infinity : told.T || null;
  return { ...USUAL, ...told, T, scene, step };
}
/* The state of a link: the initial state of a step, or the one the user left it in. */
function stateAt(link) {
  const one = stateOf(link);
  if (steps.length && (!link || /^#step=\d+$/.test(link))) return enterStep(Math.min(one.step || 0, steps.length - 1));
  return { ...one, step: steps.length && one.step !== null ? Math.min(one.step, steps.length - 1) : null };
}
function showTour() {
  const { step } = state;
  const one = steps[step];
  byId('tour').hidden = !one;
  if (!one || byId('tour').dataset.of === String(step)) return;
  byId('tour').dataset.of = String(step);
  put('tour-place', `Step ${step + 1} of ${steps.length}`);
  put('tour-title', one.title);
  const links = (one.see || []).map((id) => {
    const goes = () => byId(id).scrollIntoView({ block: 'center' });
    return make('button', { className: 'plain', onclick: goes }, byId(`${id}-title`).textContent);
  });
  const told = one.text.map((text) => make('p', {}, text));
  byId('tour-text').replaceChildren(...told, make('p', { className: 'row quiet' }, 'Look at', ...links));
  byId('tour-back').disabled = step === 0;
  byId('tour-next').disabled = step === steps.length - 1;
  const starts = steps.map((each, i) => [i, each]).filter(([i, each]) => !i || steps[i - 1].scene !== each.scene);
  const titles = starts.map(([i, each]) => [String(i), scenes.find((x) => x.name === each.scene).title]);
  chosen(byId('tour-choice'), titles, String(starts.filter(([i]) => i <= step).pop()[0]));
  for (const panel of document.querySelectorAll('#main section')) panel.classList.toggle('seen', (one.see || []).includes(panel.id));
  shown.attention = (one.see || []).includes('attention');
  shown.causal = byId('causal').checked = Boolean(one.causal);
}
function goToStep(step) {
  go(enterStep(Math.max(0, Math.min(step, steps.length - 1))));
  byId('tour-title').focus({ preventScroll: true });
}
