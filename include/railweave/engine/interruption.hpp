// Whether to go on waiting, asked of whoever embeds the engine.
#pragma once

#include <functional>

namespace railweave {

// Called some ten times a second, on the calling thread, while an exchange that is being made waits for other ranks. What it throws ends
// the wait: the exchange is not made, and the rank leaves nothing behind.
using Interruption = std::function<void()>;

}  // namespace railweave
