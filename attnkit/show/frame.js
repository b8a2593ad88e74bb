"use strict";
// Shared by pages: what has an id, and the button that changes the colors.
const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const nameTheme = () => { at("theme").textContent = isDark() ? "Light" : "Dark"; };

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
nameTheme();
at("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
