// A job's request as a command and as a program.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curl(request) {
  return `curl -s ${location.origin}/v1/jobs -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(request))}`;
}

// JSON as Python writes it. A string of JSON is one of Python.
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item)}`).join(", ")}}`;
}

export function python(request) {
  return `from octavo import Client, JobRequest\n\njob = Client().submit(JobRequest.model_validate(${literal(request)}))\n` +
    'for event in job.stream():\n    print(event.text, end="", flush=True)\n';
}
