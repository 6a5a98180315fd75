package txpool.jdbc;

import java.util.Arrays;

/** Bytes that grow, little-endian. */
final class Out {
    byte[] bytes;
    int length;
    /** Whether a text had the character NUL, which separates texts. */
    boolean hasNul;

    Out(int capacity) {
        bytes = new byte[capacity];
    }

    private void need(long more) {
        long needed = length + more;
        if (needed > bytes.length) {
            if (needed > Integer.MAX_VALUE - 16) {
                throw new OutOfMemoryError("a block of rows has more than 2 GiB");
            }
            bytes = Arrays.copyOf(bytes, (int) Math.min(Integer.MAX_VALUE - 16, Math.max(needed, 2L * bytes.length)));
        }
    }

    void putByte(int value) {
        need(1);
        bytes[length++] = (byte) value;
    }

    void putInt(int value) {
        need(4);
        putIntAt(length, value);
        length += 4;
    }

    void putIntAt(int place, int value) {
        bytes[place] = (byte) value;
        bytes[place + 1] = (byte) (value >> 8);
        bytes[place + 2] = (byte) (value >> 16);
        bytes[place + 3] = (byte) (value >> 24);
    }

    void putLong(long value) {
        putInt((int) value);
        putInt((int) (value >> 32));
    }

    void putBytes(byte[] value, int count) {
        need(count);
        System.arraycopy(value, 0, bytes, length, count);
        length += count;
    }

    void putOut(Out other) {
        putBytes(other.bytes, other.length);
    }

    /** UTF-8; a surrogate alone takes three bytes, which Python reads as that again. */
    void putText(String text) {
        int count = text.length();
        need(3L * count);
        byte[] target = bytes;
        int place = length;
        for (int i = 0; i < count; i++) {
            char c = text.charAt(i);
            if (c < 0x80) {
                if (c == 0) {
                    hasNul = true;
                }
                target[place++] = (byte) c;
            } else if (c < 0x800) {
                target[place++] = (byte) (0xC0 | c >> 6);
                target[place++] = (byte) (0x80 | c & 0x3F);
            } else if (Character.isHighSurrogate(c) && i + 1 < count && Character.isLowSurrogate(text.charAt(i + 1))) {
                int point = Character.toCodePoint(c, text.charAt(++i));
                target[place++] = (byte) (0xF0 | point >> 18);
                target[place++] = (byte) (0x80 | point >> 12 & 0x3F);
                target[place++] = (byte) (0x80 | point >> 6 & 0x3F);
                target[place++] = (byte) (0x80 | point & 0x3F);
            } else {
                target[place++] = (byte) (0xE0 | c >> 12);
                target[place++] = (byte) (0x80 | c >> 6 & 0x3F);
                target[place++] = (byte) (0x80 | c & 0x3F);
            }
        }
        length = place;
    }
}
