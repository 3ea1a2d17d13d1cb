/* Nodes that cannot reach each other: docs/protocol.md §12, death of a node.
 *
 * Node 0 and node 1, one message each way. The way from 0 to 1, and the way back, are cut and may heal, each on its own. A node that
 * has had no answer from the other for the death time declares it dead, for ever. Checked: both operations end. (One may succeed and the
 * other fail, as when a peer dies right after the last answer that it gives.)
 */
bit cut[2];                     /* way out of node i */
byte cuts = 2, heals = 2;
bit declared[2];                /* node i has declared the other dead */
bit got[2];                     /* node i has the other's message */
bit ended[2];

#if defined(MUT_HEARD_ONE_WAY)
#define HEARS(i) (!cut[1 - i])                  /* any frame counts, also pings and hellos, which go on */
#elif defined(MUT_ANSWERS_THE_DEAD)
#define HEARS(i) (!cut[i] && !cut[1 - i])
#else
#define HEARS(i) (!cut[i] && !cut[1 - i] && !declared[1 - i])   /* an answer; a node answers nothing to one that it holds for dead */
#endif

proctype Node(byte i)
{
end:
  do
  :: atomic { !got[i] && !cut[1 - i] && !declared[0] && !declared[1] && !ended[i] -> got[i] = 1 }
  :: atomic { !declared[i] && !ended[i] && !HEARS(i) -> declared[i] = 1 }
  /* the own message is answered: it got there, and `got` came back */
  :: atomic { !ended[i] && declared[i] -> ended[i] = 1 }
  :: atomic { !ended[i] && got[i] && got[1 - i] && !cut[1 - i] && !declared[1 - i] -> ended[i] = 1 }
  od
}

proctype Wire()
{
end:
  do
  :: atomic { cuts > 0 && !cut[0] -> cuts--; cut[0] = 1 }
  :: atomic { cuts > 0 && !cut[1] -> cuts--; cut[1] = 1 }
  :: atomic { heals > 0 && cut[0] -> heals--; cut[0] = 0 }
  :: atomic { heals > 0 && cut[1] -> heals--; cut[1] = 0 }
  :: atomic { cuts + heals > 0 -> cuts = 0; heals = 0 }         /* nothing more goes wrong, and nothing is repaired */
  od
}

proctype Monitor() { atomic { timeout -> assert(ended[0] && ended[1]) } }

init { atomic { run Node(0); run Node(1); run Wire(); run Monitor() } }
