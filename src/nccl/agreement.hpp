// Whether a communicator is served: a function of what all its ranks said, so that all come to the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub.hpp"

namespace railweave::nccl {

// Why a communicator is left to NCCL, in a word: metrics have it as a label, so there are few. The log says it in full.
enum class Cause : std::uint8_t {
  ended,              // by the program, while it was made
  nccl_failed,        // NCCL could not make it
  foreign_id,         // its unique id was made without the shim
  one_rank,           // there is nobody to exchange with
  no_hub,             // the process in which its ranks meet cannot be reached, or has no hub
  rank_missing,       // a rank has no shim, or came too late
  rank_left,          // a rank went away
  no_agreement,       // the ranks did not come to know each other
  versions,           // ranks have different builds
  no_device_library,  // a rank has none
  refused,            // a rank cannot serve: its GPU, what its process lacks
  several_nodes,      // it spans nodes where that is not served
  set_up_failed,      // the device side of a rank could not be made
};
const char* word_of(Cause cause);
// Of what a rank says that it lacks, `otherwise` where it is nothing special.
Cause cause_of(std::string_view refusal, Cause otherwise);

// Raised when ranks of different builds could not work together.
inline constexpr std::uint32_t kAgreementVersion = 3;

struct Facts {
  std::uint32_t version = kAgreementVersion;
  std::uint32_t device_abi = 0;
  std::string refusal;            // why this rank cannot serve; empty: it can
  std::string rendezvous;         // of rank 0
  std::uint32_t most_blocks = 0;  // of an operation's kernel; 0: nobody says any number
  HubAddress stand_by;            // this process's own hub, for children of which nobody keeps this one's; no port: it has none
  bool keeps_hub = false;         // this communicator's hub is in this process
};

std::string encode(const Facts& facts);
// A blob that cannot be read gives a refusal that says so.
Facts decode(const std::string& blob);

struct Verdict {
  bool served = false;
  Cause cause = Cause::refused;   // why not
  std::string reason;             // the same, naming the first rank
  std::string rendezvous;         // where rank 0 listens
  std::uint32_t most_blocks = 0;  // the fewest that a rank allows
};

Verdict decide(std::span<const std::string> blobs);

// Where the ranks of a child meet, all of which know what all ranks of its parent said (by rank), and which of them are not in it. One that
// does not know, as an answer was lost, and goes elsewhere costs the others their wait: no round is complete without all.
class MeetingPlaces {
 public:
  MeetingPlaces() = default;
  explicit MeetingPlaces(std::span<const std::string> blobs);
  // The parent's hub where it is the process of one of the others, or nobody's own is known: a process that has died, as that of an
  // excluded rank may have, answers nobody. Else the own hub of the first of them that has one.
  HubAddress without(std::span<const int> excluded, const HubAddress& parents) const;

 private:
  struct Place {
    HubAddress stand_by;
    bool keeps_hub;
  };
  std::vector<Place> places_;  // by rank
};

// Whether what a rank says is of itself. The device library says "rank 3: ..." of another that it met, or waited for in vain.
bool is_own(std::size_t rank, std::string_view refusal);
// The same when the device sides have been made, from why each rank has none (empty: it has one). Who lacks something itself is named, as
// the others may know no more than that this one did not come.
Verdict decide_made(std::span<const std::string> refusals);

}  // namespace railweave::nccl
