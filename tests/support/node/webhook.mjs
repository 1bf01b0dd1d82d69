// Checks messages with the package of Standard Webhooks: node webhook.mjs '[{"secret", "body", "headers"}...]'. Prints as
// JSON, for each, the event that it reads, or the name of its error.
import { Webhook } from "standardwebhooks";

const messages = JSON.parse(process.argv[2]);
const read = ({ secret, body, headers }) => {
  try {
    return new Webhook(secret).verify(body, headers);
  } catch (error) {
    return error.name;
  }
};
console.log(JSON.stringify(messages.map(read)));
