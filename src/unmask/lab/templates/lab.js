const choose = (language) => {
  document.body.className = language;
  document.documentElement.lang = language;
};
for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => choose(button.dataset.language));
}
choose((navigator.language || "en").startsWith("zh") ? "zh" : "en");
