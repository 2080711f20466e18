// usage: node client.mjs PROJECT PYTHON COMMAND [ARG...]
// Starts the server over stdio, makes the calls that test_mcp_node.py asks about, prints one JSON object.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [project, python, command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
const client = new Client({ name: "rltriage-node-test", version: "0.0.0" });

let progress = [];
const call = (name, input, options = {}) =>
  client.callTool({ name, arguments: input }, undefined, {
    onprogress: (p) => progress.push(p.progress),
    resetTimeoutOnProgress: true,
    ...options,
  });

await client.connect(transport);
const { tools } = await client.listTools();
const good = await call("check_advantages", {
  target: "algos.py:compute_advantages",
  project_root: project,
  python,
  intent: { algorithm: "grpo", group_size: 4 },
});
const heard = progress;
progress = [];
const bad = await call("check_advantages", { target: "nowhere.py:f", project_root: project });
const { resources } = await client.listResources();
const page = resources.length ? await client.readResource({ uri: resources[0].uri }) : null;

const abort = new AbortController();
const endless = call(
  "check_advantages",
  { target: "algos.py:endless_advantages", project_root: project, python },
  { signal: abort.signal },
).then(
  () => "answered",
  () => "aborted",
);
const look = setInterval(() => existsSync(join(project, "running")) && abort.abort(), 50);
const aborted = await endless;
clearInterval(look);

console.log(
  JSON.stringify({
    server: client.getServerVersion(),
    instructions: client.getInstructions(),
    tools: tools.map((t) => t.name),
    good,
    bad,
    resources: resources.length,
    page: page?.contents[0] ?? null,
    progress: heard,
    aborted,
  }),
);
await client.close();
