// Bytes to values: msgpack as octavo writes it, without extension types. Binary strings are Buffers.

const MAX_DEPTH = 12;

/** The one value that the bytes hold. Throws on anything else: bytes from a queue are not trusted. */
export function decode(buffer) {
  const input = new Input(buffer);
  const value = input.value(0);
  if (input.left > 0) throw new Error("msgpack: bytes behind the message");
  return value;
}

class Input {
  #bytes;
  #at = 0;

  constructor(buffer) {
    this.#bytes = buffer;
  }

  get left() {
    return this.#bytes.length - this.#at;
  }

  value(depth) {
    if (depth > MAX_DEPTH) throw new Error("msgpack: nested too deep");
    const tag = this.#take(1)[0];
    if (tag < 0x80) return tag;
    if (tag < 0x90) return this.#map(tag & 0x0f, depth);
    if (tag < 0xa0) return this.#array(tag & 0x0f, depth);
    if (tag < 0xc0) return this.#text(tag & 0x1f);
    if (tag >= 0xe0) return tag - 0x100;
    switch (tag) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return Buffer.from(this.#take(this.#number(1 << (tag - 0xc4))));
      case 0xca: return this.#take(4).readFloatBE();
      case 0xcb: return this.#take(8).readDoubleBE();
      case 0xcc: case 0xcd: case 0xce: return this.#number(1 << (tag - 0xcc));
      case 0xcf: return Number(this.#take(8).readBigUInt64BE());
      case 0xd0: case 0xd1: case 0xd2: {
        const size = 1 << (tag - 0xd0);
        return this.#take(size).readIntBE(0, size);
      }
      case 0xd3: return Number(this.#take(8).readBigInt64BE());
      case 0xd9: case 0xda: case 0xdb: return this.#text(this.#number(1 << (tag - 0xd9)));
      case 0xdc: case 0xdd: return this.#array(this.#number(2 << (tag - 0xdc)), depth);
      case 0xde: case 0xdf: return this.#map(this.#number(2 << (tag - 0xde)), depth);
      default: throw new Error(`msgpack: unexpected byte 0x${tag.toString(16)}`);
    }
  }

  #take(count) {
    if (count > this.left) throw new Error("msgpack: the message is cut short");
    this.#at += count;
    return this.#bytes.subarray(this.#at - count, this.#at);
  }

  #number(size) {
    return this.#take(size).readUIntBE(0, size);
  }

  #text(count) {
    return this.#take(count).toString("utf8");
  }

  #array(count, depth) {
    const items = [];
    for (let i = 0; i < count; i++) items.push(this.value(depth + 1));
    return items;
  }

  #map(count, depth) {
    const entries = [];
    for (let i = 0; i < count; i++) entries.push([this.value(depth + 1), this.value(depth + 1)]);
    return Object.fromEntries(entries);
  }
}
