//! What runs a planned program.
//!
//! A device replays instructions at addresses that the plan chose: it allocates one arena, and decides nothing.
//! [`cpu`] is here; a GPU joins as a folder beside it.

pub mod cpu;
