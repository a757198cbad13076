// Copies the parts of the package that are elsewhere in the repository: the messages of the service with what they
// import, and the licence.

import { cpSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const FILES = {
  "../../proto/tollgate/v1/tollgate.proto": "proto/tollgate/v1/tollgate.proto",
  "../../proto/google/rpc/status.proto": "proto/google/rpc/status.proto",
  "../../LICENSE": "LICENSE",
};

const path = (name) => fileURLToPath(new URL(name, import.meta.url));

rmSync(path("proto"), { recursive: true, force: true });
for (const [from, to] of Object.entries(FILES)) cpSync(path(from), path(to));
