// The id of LP-6420 §4.3, which a foreign gossipsub must use to live in one mesh with LuxRelay.
import { createHash } from 'node:crypto'

const SLOT_AT = 2 // version and flags of the header come first
const SLOT_BYTES = 28 // namespace id and sequence number

/** SHA3-256 of the slot (types 1 and 4) or of the payload's first hash (types 2 and 3). */
export function messageId (data) {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength)
  const payload = 4 + bytes.readUInt16BE(2) + 4
  const type = bytes[1]
  const part = type === 1 || type === 4
    ? bytes.subarray(payload + 2 + SLOT_AT, payload + 2 + SLOT_AT + SLOT_BYTES)
    : bytes.subarray(payload, payload + 32)
  return createHash('sha3-256').update(part).digest()
}

/** Whether the bytes are shaped like an envelope; everything else has no id and is rejected. */
export function isEnvelope (data) {
  return data.byteLength >= 48 && data.byteLength <= 66_000 && data[0] === 1
}
