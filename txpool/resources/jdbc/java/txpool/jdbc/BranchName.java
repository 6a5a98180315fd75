package txpool.jdbc;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import javax.transaction.xa.Xid;

/** The name of a branch, as drivers want it. Immutable. */
public final class BranchName implements Xid {
    private final int format;
    private final byte[] global;
    private final byte[] branch;

    public BranchName(int format, String global, String branch) {
        this.format = format;
        this.global = global.getBytes(StandardCharsets.US_ASCII);
        this.branch = branch.getBytes(StandardCharsets.US_ASCII);
    }

    @Override
    public int getFormatId() {
        return format;
    }

    @Override
    public byte[] getGlobalTransactionId() {
        return global.clone();
    }

    @Override
    public byte[] getBranchQualifier() {
        return branch.clone();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Xid
                && ((Xid) other).getFormatId() == format
                && Arrays.equals(((Xid) other).getGlobalTransactionId(), global)
                && Arrays.equals(((Xid) other).getBranchQualifier(), branch);
    }

    @Override
    public int hashCode() {
        return 31 * Arrays.hashCode(global) + Arrays.hashCode(branch);
    }

    @Override
    public String toString() {
        return new String(global, StandardCharsets.US_ASCII) + ":" + new String(branch, StandardCharsets.US_ASCII);
    }

    /** Its parts as text, each byte a character: format, global part and branch, with a line end between them. */
    public static String parts(Xid of) {
        return of.getFormatId()
                + "\n"
                + new String(of.getGlobalTransactionId(), StandardCharsets.ISO_8859_1).replace("\n", "\\n")
                + "\n"
                + new String(of.getBranchQualifier(), StandardCharsets.ISO_8859_1).replace("\n", "\\n");
    }
}
