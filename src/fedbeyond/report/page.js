"use strict";
// Show figures one at a time, as tabs (without this script: as a list), and offer each as a PNG drawn from its SVG.
const gallery = document.getElementById("gallery");
const slides = gallery ? [...gallery.children] : [];

function png(slide) {
  const svg = slide.querySelector("a[download$='.svg']");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "PNG";
  button.addEventListener("click", () => {
    const picture = new Image();
    picture.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [picture.naturalWidth * 2.5, picture.naturalHeight * 2.5];
      const context = canvas.getContext("2d");
      context.fillStyle = "#fff";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      const link = document.createElement("a");
      link.download = svg.download.replace(/svg$/, "png");
      link.href = canvas.toDataURL("image/png");
      link.click();
    });
    picture.src = svg.href;
  });
  svg.after(" ", button);
}

function tabs() {
  const list = document.createElement("div");
  list.className = "tabs";
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-labelledby", "h-figures");
  const buttons = slides.map((slide) => {
    const button = document.createElement("button");
    button.type = "button";
    button.id = `tab-${slide.id}`;
    button.textContent = slide.dataset.title;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", slide.id);
    slide.setAttribute("role", "tabpanel");
    slide.setAttribute("aria-labelledby", button.id);
    list.append(button);
    return button;
  });
  function show(chosen) {
    slides.forEach((slide, index) => {
      slide.hidden = index !== chosen;
      buttons[index].setAttribute("aria-selected", index === chosen);
      buttons[index].tabIndex = index === chosen ? 0 : -1;
    });
  }
  list.addEventListener("click", (event) => {
    if (buttons.includes(event.target)) show(buttons.indexOf(event.target));
  });
  list.addEventListener("keydown", (event) => {
    const last = buttons.length - 1;
    const index = buttons.indexOf(document.activeElement);
    const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index === 0 ? last : index - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
    buttons[next].focus();
  });
  function followHash() {
    const index = slides.findIndex((slide) => `#${slide.id}` === decodeURIComponent(location.hash));
    if (index >= 0) {
      show(index);
      slides[index].scrollIntoView();
    }
  }
  gallery.before(list);
  show(0);
  addEventListener("hashchange", followHash);
  followHash();
}

slides.forEach(png);
if (slides.length > 1) tabs();
