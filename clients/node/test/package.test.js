import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { PROTO_DIRECTORY } from "tollgate-ratelimit-client";

import { eventually, start, startTollgate } from "./processes.js";

const text = (name) => readFileSync(new URL(`../${name}`, import.meta.url), "utf8");
const path = (name) => fileURLToPath(new URL(`../${name}`, import.meta.url));

test("messages_of_package_equal_those_of_the_service", () => {
  const files = readdirSync(path("proto"), { recursive: true }).filter((name) => name.endsWith(".proto"));

  assert.ok(files.length > 0);
  for (const name of files)
    assert.equal(text(`proto/${name}`), text(`../../proto/${name}`), `${name}: run \`npm run proto\``);
});

test("service_of_package_decides_requests_together", async (t) => {
  const { address } = await startTollgate(t);
  const definition = loadSync("tollgate/v1/tollgate.proto", { includeDirs: [PROTO_DIRECTORY] });
  const { RateLimiter } = loadPackageDefinition(definition).tollgate.v1;
  const service = new RateLimiter(address, credentials.createInsecure());
  t.after(() => service.close());
  const request = (hits) => ({ domain: "shop", descriptors: [{ entries: [{ key: "user", value: "ada" }] }], hits });

  const check = promisify(service.check.bind(service));
  const { answers } = await check({ requests: [request(2), request(2)], mode: "TOGETHER" });

  assert.deepEqual(
    answers.map(({ verdict }) => verdict),
    [2, 2],
    "all are denied, since together they have more hits than the limit",
  );
});

const ADDRESSES = `
domain: edge
descriptors: [{key: remote_address, rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}}]
`;
const [FIRST_PROGRAM, MIDDLEWARE] = [...text("README.md").matchAll(/^```js\n(.*?)^```$/gms)].map(([, block]) => block);

test("first_program_of_readme_prints_the_decision", async (t) => {
  const { address } = await startTollgate(t, { rules: ADDRESSES });
  const client = 'new Client("127.0.0.1:8081", { timeoutMs: 1_000,';
  assert.ok(FIRST_PROGRAM.includes(client));
  // With a timeout that suits a busy machine.
  const program = FIRST_PROGRAM.replace(client, `new Client("${address}", { timeoutMs: 20_000,`);
  const directory = fileURLToPath(new URL("..", import.meta.url));
  const run = promisify(execFile);
  const printed = async () => {
    const done = await run(process.execPath, ["--input-type=module", "--eval", program], { cwd: directory });
    return done.stdout;
  };

  assert.deepEqual([await printed(), await printed()], ["server allowed\n", "server allowed\n"]);
  assert.match(await printed(), /^server refused for [\d.]+ ms\n$/);
});

test("readme_lines_of_middleware_are_lines_of_the_example", () => {
  assert.ok(text("example/server.js").includes(MIDDLEWARE));
});

test("readme_names_every_option_with_its_default", async () => {
  const { ClientOptions, defaults } = optionsOf(text("dist/client.js"), text("dist/client.d.ts"));
  const cells = text("README.md").matchAll(/^\| `(\w+)` \| ([^|]*) \|/gm);
  const rows = new Map([...cells].map(([, name, usual]) => [name, usual]));

  assert.deepEqual([...rows.keys()], ClientOptions);
  for (const [name, usual] of defaults) assert.equal(rows.get(name).replaceAll(",", ""), usual, name);
});

// The names of all options, and the defaults of those that are numbers.
function optionsOf(code, types) {
  const [, fields] = /interface ClientOptions \{(.*?)^\}/ms.exec(types);
  const defaults = [...code.matchAll(/^ {4}(\w+): \{ min: .* usual: ([\d_]+) \}/gm)];
  return {
    ClientOptions: [...fields.matchAll(/readonly (\w+)\?:/g)].map(([, name]) => name),
    defaults: defaults.map(([, name, usual]) => [name, usual.replaceAll("_", "")]),
  };
}

const USERS = `
domain: edge
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window}}]
`;

test("example_refuses_the_fourth_request_of_a_user", async (t) => {
  const { address } = await startTollgate(t, { rules: USERS });
  const arguments_ = [path("example/server.js"), "--tollgate", address, "--listen", "127.0.0.1:0"];
  const { found: url } = await start(t, process.execPath, arguments_, (line) => /^listening on (.*)$/.exec(line)?.[1]);
  const get = (name) => fetch(`${url}/hello`, { headers: { user: name } });
  // Its deadline of 100 ms may be too short for the first request of a new connection.
  await eventually("it asks the server", async () => (await get("probe")).headers.has("ratelimit-limit"));

  await eventually("ada is refused", async () => (await get("ada")).status === 429);
  assert.equal((await get("ada")).headers.get("ratelimit-limit"), "3");
  assert.equal((await get("bob")).status, 200);
  await eventually("requests without a user are refused", async () => (await fetch(`${url}/hello`)).status === 429);
});
