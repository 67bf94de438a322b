/* SPDX-License-Identifier: Apache-2.0 */
// Draws figures when they are first shown; runs the choosers, the variant keys and the tables. No network.
(function () {
  'use strict';

  const all = (query, root) => Array.from((root || document).querySelectorAll(query));
  const hidden = new Set(); // variants switched off by a key
  const coarse = matchMedia('(pointer: coarse)').matches;

  function draw(div) {
    if (div.dataset.drawn || !div.offsetParent) return;
    const spec = JSON.parse(div.parentElement.querySelector('script.spec').textContent);
    spec.data.forEach((trace) => { if (hidden.has(trace.legendgroup)) trace.visible = false; });
    if (coarse) spec.layout.dragmode = false; // a finger scrolls the page, it does not zoom
    div.dataset.drawn = 'yes';
    Plotly.newPlot(div, spec.data, spec.layout, { responsive: true, displayModeBar: false });
  }

  const drawShown = () => all('.plot').forEach(draw);

  all('[data-chooser]').forEach((select) => {
    const contents = all('[data-choice="' + select.dataset.chooser + '"]');
    select.addEventListener('change', () => {
      contents.forEach((content) => { content.hidden = content.dataset.index !== select.value; });
      drawShown();
    });
  });

  all('details').forEach((element) => element.addEventListener('toggle', drawShown));

  all('[data-variant]').forEach((button) => button.addEventListener('click', () => {
    const variant = button.dataset.variant;
    const show = hidden.has(variant);
    if (show) hidden.delete(variant); else hidden.add(variant);
    all('[data-variant]').filter((other) => other.dataset.variant === variant)
      .forEach((other) => other.setAttribute('aria-pressed', String(show)));
    all('.plot[data-drawn]').forEach((div) => {
      const places = div.data.flatMap((trace, place) => (trace.legendgroup === variant ? [place] : []));
      if (places.length) Plotly.restyle(div, { visible: show }, places);
    });
  }));

  // Tables: every number carries its exact value.
  const key = (cell) => {
    const data = cell.querySelector('data');
    if (!data) return cell.textContent;
    const value = JSON.parse(data.value);
    return value === null ? -Infinity : value;
  };
  const compare = (a, b) => (typeof a === 'number' && typeof b === 'number'
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

  all('table.sortable').forEach((table) => {
    const heads = all('thead th', table);
    heads.forEach((head, column) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.title = 'Sort by this column';
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener('click', () => {
        const down = head.getAttribute('aria-sort') === 'ascending';
        heads.forEach((other) => other.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        const body = table.tBodies[0];
        const rows = Array.from(body.rows).map((row) => [key(row.cells[column]), row]);
        rows.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
  });

  all('[data-filter]').forEach((input) => {
    const ident = input.dataset.filter;
    const wrong = document.querySelector('[data-wrong="' + ident + '"]');
    const count = document.querySelector('[data-count="' + ident + '"]');
    const rows = all('#' + ident + ' tbody tr');
    const filter = () => {
      const text = input.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row) => {
        const used = key(row.cells[row.cells.length - 1]);
        row.hidden = (text !== '' && !row.textContent.toLowerCase().includes(text)) || (wrong.checked && !(used > 0));
        if (!row.hidden) shown += 1;
      });
      count.textContent = shown.toLocaleString('en') + (shown === 1 ? ' row' : ' rows');
    };
    input.addEventListener('input', filter);
    wrong.addEventListener('change', filter);
  });

  const digits = document.getElementById('digits');
  const numbers = all('data.number');
  if (digits) {
    digits.addEventListener('change', () => numbers.forEach((data) => {
      if (!data.dataset.read) data.dataset.read = data.textContent;
      data.textContent = digits.checked ? data.value : data.dataset.read;
    }));
  }

  // A sheet of A4 is some 717 px wide, and the browser asks before it lays the sheet out: widths are set by hand.
  const shown = () => all('.plot[data-drawn]').filter((div) => div.offsetParent);
  addEventListener('beforeprint', () => shown().forEach((div) => {
    Plotly.relayout(div, { autosize: false, width: div.closest('.figures') ? 330 : 690 });
  }));
  addEventListener('afterprint', () => shown().forEach((div) => {
    Plotly.relayout(div, { autosize: true, width: null }).then(() => Plotly.Plots.resize(div));
  }));

  drawShown();
}());
