// What the page shows, measured in the page.
(() => {
  const channel = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const luminance = ({ r, g, b }) =>
    0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a > 0) return colour;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  const isShown = (element) => element.getClientRects().length > 0;

  const faint = [];
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !isShown(element)) continue;
    const style = getComputedStyle(element);
    const colour = parse(element.closest("svg") ? style.fill : style.color);
    texts += 1;
    faint.push({ text: node.data.trim().slice(0, 40), contrast: contrast(colour, ground(element)) });
  }

  const box = (element) => element.getBoundingClientRect();
  const charts = [...document.querySelectorAll("svg")].filter(isShown).map((svg) => {
    const frame = box(svg);
    const words = [...svg.querySelectorAll("text")].filter(isShown);
    const boxes = words.map((word) => [word.textContent, box(word)]);
    const outside = boxes.filter(
      ([, b]) =>
        b.left < frame.left - 1 || b.right > frame.right + 1 ||
        b.top < frame.top - 1 || b.bottom > frame.bottom + 1,
    );
    const overlapping = [];
    boxes.forEach(([text, a], at) =>
      boxes.slice(at + 1).forEach(([other, b]) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > -3 && high > 4) overlapping.push(`${text} / ${other}`);
      }),
    );
    const scale = frame.width / svg.viewBox.baseVal.width;
    const sizes = words.map((word) => parseFloat(getComputedStyle(word).fontSize) * scale);
    return {
      label: svg.getAttribute("aria-label") || "",
      width: frame.width,
      height: frame.height,
      texts: words.length,
      outside: outside.map(([text]) => text),
      overlapping,
      smallest: Math.min(...sizes),
    };
  });

  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  const references = [...document.body.innerHTML.matchAll(/url\((?:&quot;)?#([^)&]+)|href="#([^"]+)"/g)];
  const tables = [...document.querySelectorAll("table")];
  return {
    title: document.title,
    scrollWidth: document.documentElement.scrollWidth,
    ground: luminance(ground(document.body)),
    texts,
    faint: faint.filter((one) => one.contrast < 7),
    charts,
    headings: [...document.querySelectorAll("h1,h2,h3,h4")].map((one) => Number(one.tagName[1])),
    tables: tables.length,
    unscoped: tables.filter((one) => [...one.querySelectorAll("th")].some((th) => !th.scope)).length,
    unnamed: tables.filter((one) => !one.closest("[role=region][aria-label]")).length,
    scripts: document.scripts.length,
    images: document.images.length,
    repeatedIds: ids.filter((id, at) => ids.indexOf(id) !== at),
    brokenReferences: references.map((r) => r[1] || r[2]).filter((id) => !ids.includes(id)),
  };
})();
