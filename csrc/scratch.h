// Room that a kernel works in, one of each kind per thread. Taken when it is first asked for: as plain thread-local variables it
// would lie in every thread's memory for all instruction sets, in an executable even on the thread's stack.
#pragma once

#include <memory>

namespace kvist::KVIST_ISA {

// Holds whatever the last user left.
template <class Room>
Room& scratch() {
    static thread_local const std::unique_ptr<Room> room(new Room);
    return *room;
}

}  // namespace kvist::KVIST_ISA
