// Checks objects (JSON on stdin) against the schemas of Kubernetes and the Prometheus Operator; one line a fault.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [modules] = process.argv.slice(2);
const objects = JSON.parse(readFileSync(0, "utf8"));
for (const one of objects) {
  const [group, version] = one.apiVersion.includes("/") ? one.apiVersion.split("/") : ["", one.apiVersion];
  const home = group === "monitoring.coreos.com" ? "@kubernetes-models/prometheus-operator" : "kubernetes-models";
  const file = path.join(modules, home, group, version, `${one.kind}.js`);
  const models = await import(pathToFileURL(file));
  try {
    new models[one.kind](one).validate();
  } catch (error) {
    console.log(`${one.kind} ${one.metadata.name}: ${error.message.replaceAll("\n", "; ")}`);
  }
}
