/* Endpoints of a link come in pairs: docs/protocol.md §7, last rule.
 *
 * Two NICs, 0 and 1, each with one chunk for the other. Each has made some endpoints to the other, and uses the newest; the n-th of one
 * belongs to the n-th of the other. Small frames always arrive; data only if both ends use the same pair when it arrives, else it is
 * lost without a word. Each end may hold the link for lost, wrongly, FLAPS times in all, and then makes a new endpoint. Frames of one way
 * come in order. Checked: both chunks arrive, and the ends come to rest, on the same pair.
 */
#ifndef FLAPS
#define FLAPS 2
#endif
#define MOST 9                  /* endpoints */

#define HELLO  1
#define OFFER  2
#define ACCEPT 3
#define DATA   4
#define GOT    5
chan wire[2] = [8] of { byte, byte };   /* into NIC i: kind, number of the sender's endpoint */
byte made[2] = { 1, 1 };
bit  got[2], landed[2];
byte flaps = FLAPS;

#define TELL(kind) wire[1 - i]!kind, made[i]

/* NIC i hears a number: it makes as many, which closes what it had */
#if defined(MUT_DEAF)
#define HEAR(n) skip
#elif defined(MUT_ONE_BEYOND)
#define HEAR(n) if :: n >= made[i] && n > 1 -> made[i] = n + 1; assert(made[i] < MOST); TELL(HELLO) :: else fi
#elif defined(MUT_ONE_AT_A_TIME)
#define HEAR(n) if :: n > made[i] && !once[i] -> once[i] = 1; made[i]++; TELL(HELLO) :: else fi
bit once[2];
#else
#define HEAR(n) if :: n > made[i] -> made[i] = n; TELL(HELLO) :: else fi
#endif

proctype Nic(byte i)
{ byte kind, n;
end:
  do
  :: atomic { wire[i]?kind, n ->
       if :: kind == DATA && n != made[i] -> kind = 0 :: else fi;       /* its pair is broken: nothing of it is seen */
       if :: kind != 0 -> HEAR(n) :: else fi;
       if
       :: kind == OFFER && !landed[i] -> TELL(ACCEPT)
       :: kind == OFFER && landed[i] -> TELL(GOT)
       :: kind == ACCEPT && !got[i] -> TELL(DATA)
       :: kind == DATA -> landed[i] = 1; TELL(GOT)
       :: kind == GOT -> got[i] = 1
       :: else
       fi; kind = 0; n = 0 }
  /* offered first, and again when nothing is under way any more */
  :: atomic { !got[i] && empty(wire[0]) && empty(wire[1]) -> TELL(OFFER) }
  :: atomic { flaps > 0 && nfull(wire[1 - i]) -> flaps--; made[i]++; TELL(HELLO) }
  :: atomic { flaps > 0 -> flaps = 0 }  /* no more faults: a state that only a fault would move on is a hang */
  od
}

proctype Monitor() { atomic { timeout -> assert(got[0] && got[1] && landed[0] && landed[1] && made[0] == made[1]) } }

init { atomic { run Nic(0); run Nic(1); run Monitor() } }
