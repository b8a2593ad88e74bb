// Paper cannot be opened: what is folded is printed.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open])")) {
    fold.dataset.folded = "";
    fold.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const fold of document.querySelectorAll("details[data-folded]")) fold.open = false;
});
document.body.dataset.state = "ready";
