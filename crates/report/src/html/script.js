'use strict';
(() => {
  const root = document.documentElement;
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const theme = document.getElementById('theme');
  const scheme = () => root.dataset.theme || (dark.matches ? 'dark' : 'light');
  const other = () => (scheme() === 'dark' ? 'light' : 'dark');
  const name = () => { theme.textContent = other() === 'dark' ? 'Dark' : 'Light'; };
  theme.onclick = () => { root.dataset.theme = other(); name(); };
  dark.addEventListener('change', name);
  theme.hidden = false;
  name();

  // Each column: largest first, smallest first (words the other way), then the order of the page again.
  for (const table of document.querySelectorAll('table.sort')) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute('aria-sort', 'none');
      const value = row => {
        const cell = row.cells[column];
        if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
        return cell.querySelector('.why') ? null : cell.textContent.trim();
      };
      const isNumber = rows.some(row => typeof value(row) === 'number');
      const order = isNumber ? ['descending', 'ascending', 'none'] : ['ascending', 'descending', 'none'];
      button.onclick = () => {
        const next = order[(order.indexOf(head.getAttribute('aria-sort')) + 1) % 3];
        heads.forEach(h => h.setAttribute('aria-sort', 'none'));
        head.setAttribute('aria-sort', next);
        const sign = next === 'ascending' ? 1 : -1;
        const sorted = next === 'none' ? rows : [...rows].sort((one, two) => {
          const a = value(one), b = value(two);
          // What is missing is last either way.
          if (a === null || b === null) return (a === null) - (b === null);
          return a < b ? -sign : a > b ? sign : 0;
        });
        body.append(...sorted);
      };
    });
  }

  // A table that is wider than its room says above it what is out of sight.
  const hints = [...document.querySelectorAll('.scroll')].map(box => {
    const hint = document.createElement('p');
    hint.className = 'method';
    hint.hidden = true;
    box.before(hint);
    const heads = [...box.querySelectorAll('thead th')];
    return () => {
      hint.hidden = box.scrollWidth <= box.clientWidth + 1;
      if (hint.hidden) return;
      const cut = heads.filter(head => head.offsetLeft + head.offsetWidth > box.clientWidth + 1);
      const names = cut.map(head => head.textContent.trim()).filter(Boolean).join(', ');
      hint.textContent = names
        ? `Scroll sideways to see ${names}.`
        : 'Scroll sideways to see the rest.';
    };
  });
  const tell = () => hints.forEach(say => say());
  addEventListener('resize', tell);
  document.addEventListener('toggle', tell, true);
  tell();

  // A tip stands inside the window, whatever scrolls around it.
  const place = event => {
    const why = event.target.closest && event.target.closest('.why');
    if (!why) return;
    const tip = why.querySelector('.tip');
    const at = why.getBoundingClientRect();
    // Measured where it has room: at the right edge it would be narrow.
    tip.style.left = '0';
    const below = at.bottom + 4 + tip.offsetHeight < innerHeight;
    tip.style.left = Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8)) + 'px';
    tip.style.top = (below ? at.bottom + 4 : Math.max(8, at.top - 4 - tip.offsetHeight)) + 'px';
  };
  addEventListener('pointerover', place);
  addEventListener('focusin', place);
  addEventListener('keydown', event => {
    if (event.key === 'Escape' && document.activeElement) document.activeElement.blur();
  });

  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.tagName === 'DETAILS') target.open = true;
    target.scrollIntoView();
  };
  addEventListener('hashchange', reveal);
  reveal();

  const all = document.getElementById('all');
  if (all) {
    const cells = [...document.querySelectorAll('details.cell')];
    const label = () => { all.textContent = cells.every(cell => cell.open) ? 'Close all' : 'Open all'; };
    all.onclick = () => {
      const open = !cells.every(cell => cell.open);
      cells.forEach(cell => { cell.open = open; });
      label();
    };
    cells.forEach(cell => cell.addEventListener('toggle', label));
    all.hidden = false;
  }
})();
