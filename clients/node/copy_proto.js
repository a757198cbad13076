// Copies the messages of the service, and what they import, into proto/, which is a part of the package.

import { cpSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const FILES = ["tollgate/v1/tollgate.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"];

const path = (name) => fileURLToPath(new URL(name, import.meta.url));

rmSync(path("proto"), { recursive: true, force: true });
for (const file of FILES) cpSync(path(`../../proto/${file}`), path(`proto/${file}`));
