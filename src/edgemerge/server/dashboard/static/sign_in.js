// Presses the button of a sign-in link; what only previews a link runs no scripts and leaves it unused.
const form = document.getElementById("by-link");
if (form) form.requestSubmit();
