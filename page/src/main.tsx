/** The start of the page. */

import { render } from "preact";
import { startWaking } from "./api/again";
import { App } from "./app";
import { startRouter } from "./router";
import { startTheme } from "./theme";
import "./style.css";
import "./pages/study.css";

startTheme();
startRouter();
startWaking();
const root = document.getElementById("page");
if (root !== null) render(<App />, root);
