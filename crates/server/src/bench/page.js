for (const figure of document.querySelectorAll('[data-series]')) {
  const series = JSON.parse(figure.dataset.series), svg = figure.querySelector('svg');
  const cursor = svg.querySelector('.cursor'), tip = figure.querySelector('.tip');
  const {left, right, count, step: seconds} = JSON.parse(figure.dataset.scale);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const step = count > 1 ? (right - left) / (count - 1) : 1;
    const index = Math.max(0, Math.min(count - 1, Math.round((x - left) / step)));
    cursor.setAttribute('x1', left + index * step); cursor.setAttribute('x2', left + index * step);
    cursor.setAttribute('visibility', 'visible');
    tip.textContent = `${+((index + 1) * seconds).toFixed(2)} s:  ` + series.map(line =>
      `${line.name} ${line.values[index].toLocaleString('en', {maximumSignificantDigits: 5})}`).join('   ');
  });
}
