/* Searches a run of the model that shows the same states as the ranks of a history (README.md, "Follow"). As in the
 * histories, calls are lost and come in any order. Ranks without a part in an attempt may be dead. Repairs and pulls
 * may fail at any point. With CUTS, any rank may be cut off at any moment. The environment variable SHOWN names a file:
 *
 *   members M0 M1 M2                         of the planned epochs, as masks
 *   world FLIPS ATTEMPTS FENCES DEATHS CUTS  limits
 *   see A B C S                              in order of time: each rank as in SEEN (255: any state), and the survivors
 *
 * The environment variable LEADERS is 1 or 2.
 */
c_decl {
    static int head[8], line[5000][4], lines, most, unread = 1;
    static void Reach(int at) { if (at > most) most = at; }
    static void Tell(void) { printf("shown %d of %d\n", most + 1, lines); }
    static void Read(void) {
        FILE* in = fopen(getenv("SHOWN"), "r");
        if (!unread) return; /* a search starts more than once */
        unread = 0;
        atexit(Tell);
        if (!in || fscanf(in, " members %d %d %d world %d %d %d %d %d", head, head + 1, head + 2, head + 3, head + 4, head + 5, head + 6, head + 7) != 8) exit(3);
        while (lines < 5000 && fscanf(in, " see %d %d %d %d", line[lines], line[lines] + 1, line[lines] + 2, line[lines] + 3) == 4) lines++;
        if (!feof(in)) exit(3);
    }
}
hidden byte members[4], flips, attempts, most_fences, leaders, dies, cuts;
short at; /* the line that was shown last */

#define MEMBERS(e) members[e]
#define FLIPS flips
#define ATTEMPTS attempts
#define MAX_FENCES most_fences
#define HEARS(k) true
#define CUTS cuts
#define SEES true
#define FAILS true
#define ONCE skip
#define OF_CONCERN(k) CONCERNS(k, t)

#define WAS(k) IN(MEMBERS(t - 1), k)
#define HAS_IT(k) (!JOINS(k) || IN(called, k))
#define CALL(k) d_step { JOINS(k) && !IN(called, k) -> called = called | 1 << k; \
                    if :: up[k] && staged[k] == a -> armed[k] = true :: else fi }
#define PERMIT called = 0; no = 0; do :: CALL(0) :: CALL(1) :: CALL(2) :: EACH(HAS_IT) -> late = a; break :: break od

#define NO(k) -> no = no | 1 << k
#define SAYS_NO(k) (!WAS(k) || IN(no, k))
#define IS_BACK(k) (!CONCERNS(k, t) || IN(no, k))
#define MAY_ASK(k) (CONCERNS(k, t) && (WAS(k) || EACH(SAYS_NO)))
#define ASK do :: MAY_ASK(0) -> ask(0) :: MAY_ASK(1) -> ask(1) :: MAY_ASK(2) -> ask(2) \
               :: went || EACH(FLIPPED) || EACH(IS_BACK) -> break od; skip

#define ONCE_EACH(say) :: !IN(done, 0) -> say(0); done = done | 1 \
                       :: !IN(done, 1) -> say(1); done = done | 2 \
                       :: !IN(done, 2) -> say(2); done = done | 4
#define TELL_ALL do ONCE_EACH(tell) :: again = again || done != 7; done = 0; break od; skip
#define PERMIT_REPAIR do ONCE_EACH(permitRepair) :: done = 0; break od; skip
#define MISSES :: view = 7; if :: reach = 6 :: reach = 5 :: reach = 3 fi \
               :: if :: view = 6 :: view = 5 :: view = 3 fi; reach = view

#define SEEN(k) (now.up[k] ? now.ep[k] | (now.armed[k] || now.mayMend[k]) << 4 | now.latched[k] << 5 | now.stopped[k] << 6 : 128)
#define FITS(k, n) (line[n][k] == 255 || line[n][k] == SEEN(k))
#define SHOWS(n) (FITS(0, n) && FITS(1, n) && FITS(2, n) && line[n][3] == now.survivors)
never { /* ends when all lines were shown */
    do
    :: c_expr { !unread && now.at + 1 == lines } -> break
    :: c_expr { unread || SHOWS(now.at) }
    :: d_step { c_expr { !unread && now.at + 1 < lines && SHOWS(now.at + 1) } -> at++; c_code { Reach(now.at); } }
    od
}
#define BEGIN d_step { c_code { \
            Read(); \
            members[0] = head[0]; members[1] = head[1]; members[2] = head[2]; \
            flips = head[3]; attempts = head[4]; most_fences = head[5]; dies = head[6]; cuts = head[7]; \
            leaders = atoi(getenv("LEADERS")); \
        } }
#define REST \
        run Operator(); run Leader(); \
        if :: leaders > 1 -> run Leader() :: else fi; \
        if :: dies -> run Failure() :: else fi
