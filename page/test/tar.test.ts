import { describe, expect, it } from "vitest";
import { readTar, textOf } from "../src/lib/tar";

const encoder = new TextEncoder();

function entry(name: string, kind: string, body: string): Uint8Array {
  const content = encoder.encode(body);
  const bytes = new Uint8Array(512 + Math.ceil(content.length / 512) * 512);
  bytes.set(encoder.encode(name), 0);
  bytes.set(encoder.encode(`${content.length.toString(8).padStart(11, "0")}\0`), 124);
  bytes.set(encoder.encode(kind), 156);
  bytes.set(encoder.encode("ustar"), 257);
  bytes.set(content, 512);
  return bytes;
}

function archive(...entries: Uint8Array[]): Uint8Array {
  return Uint8Array.from([...entries, new Uint8Array(1024)].flatMap((part) => [...part]));
}

describe("readTar", () => {
  it("returns plain files in order, without folders and links", () => {
    const files = readTar(
      archive(
        entry("./train.py", "0", "print(1)\n"),
        entry("lib", "5", ""),
        entry("link", "2", ""),
        entry("a", "0", ""),
      ),
    );
    expect(files.map(({ path, body }) => [path, textOf(body)])).toEqual([
      ["a", ""],
      ["train.py", "print(1)\n"],
    ]);
  });
  it("reads long names of both forms", () => {
    const long = `${"folder/".repeat(30)}a.py`;
    const record = ` path=${long}\n`;
    const length = record.length + String(record.length + 3).length;
    const files = readTar(archive(entry("x", "x", `${length}${record}`), entry("short", "0", "1")));
    expect(files[0]?.path).toBe(long);
    expect(readTar(archive(entry("@", "L", `${long}\0`), entry("short", "0", "1")))[0]?.path).toBe(long);
  });
  it("refuses an archive that ends early", () => {
    expect(() => readTar(entry("a", "0", "x".repeat(600)).subarray(0, 700))).toThrow("broken");
  });
});

it("knows bytes that are no text", () => {
  expect(textOf(Uint8Array.of(0x89, 0x50, 0))).toBeNull();
  expect(textOf(Uint8Array.of(0xff, 0xfe))).toBeNull();
  expect(textOf(encoder.encode("ä"))).toBe("ä");
});
