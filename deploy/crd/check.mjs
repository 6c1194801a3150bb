// Reads JSON objects, one a line, from stdin; exit 1 where a PodMonitor or PrometheusRule is not valid.
// Usage: node deploy/crd/check.mjs < objects.jsonl
import { createInterface } from "node:readline";
import * as monitoring from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

let checked = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const object = JSON.parse(line);
  const Model = monitoring[object.kind];
  if (Model === undefined || object.apiVersion !== "monitoring.coreos.com/v1") {
    console.error(`no schema of ${object.apiVersion} ${object.kind}`);
    process.exit(1);
  }
  try {
    new Model(object).validate();
  } catch (error) {
    console.error(`${object.kind}/${object.metadata?.name}: ${error.message}`);
    process.exit(1);
  }
  checked += 1;
}
console.log(`${checked} checked`);
