// Who looks at the page: a token from a link, from this tab, or typed in.

import { Denied, beginSession, tryToken, useToken } from "./api.js";
import { byId } from "./page.js";

function askForToken(message) {
  byId("login-error").textContent = message;
  const dialog = byId("login");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve({ token: byId("token").value.trim(), user: "", namespace: "" }), { once: true }));
}

function remembered() {
  try {
    const found = JSON.parse(sessionStorage.getItem("session"));
    return typeof found?.token === "string" ? found : null;
  } catch {
    return null;
  }
}

// A link carries a token (`dray up`), or a code for one (`dray dashboard`), behind the #, which browsers never send to a server.
async function fromLink() {
  const given = /[#&](token|code)=([^&]+)/.exec(location.hash);
  if (!given) return null;
  history.replaceState(null, "", "#/map");
  const secret = decodeURIComponent(given[2]);
  return given[1] === "token" ? { token: secret, user: "", namespace: "" } : beginSession(secret);
}

// Return the user and their namespace, as far as they are known, once the server accepts a token.
export async function signIn() {
  let message = "";
  let me = null;
  try {
    me = await fromLink();
  } catch (error) {
    message = error.message;
  }
  me ??= remembered();
  for (;;) {
    me ??= await askForToken(message);
    useToken(me.token);
    try {
      await tryToken();
      sessionStorage.setItem("session", JSON.stringify(me));
      byId("token").value = "";
      byId("me").textContent = me.user ?? "";
      return me;
    } catch (error) {
      message = error instanceof Denied ? error.message : `The server does not answer: ${error.message}`;
      sessionStorage.removeItem("session");
      me = null;
    }
  }
}
