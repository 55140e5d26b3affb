//! From a rendezvous to a group.

use crate::bulk::Transport;
use crate::control::Control;
use crate::deadlines::Deadlines;
use crate::error::GroupError;
use crate::group::Group;
use crate::rendezvous::{Arrival, meet};
use crate::tcp::Tcp;

/// Meets the other processes. Tensors travel by `transport`, or by TCP if there is none.
pub(crate) fn connect(
    arrival: Arrival,
    deadlines: Deadlines,
    transport: Option<Box<dyn Transport>>,
) -> Result<Group, GroupError> {
    let rank = arrival.rank;
    let met = meet(arrival)?;
    let hosts = met.members.iter().map(|member| member.host.clone());
    let control = Control::new(rank, hosts.collect(), met.control, deadlines)?;
    let transport = match transport {
        Some(transport) => transport,
        None => Box::new(Tcp::new(met.bulk, deadlines.silence).map_err(|error| {
            GroupError::Start(format!("a connection could not be set up: {error}"))
        })?),
    };
    let group = Group::new(rank, met.members, control, transport);
    // A barrier: all processes are connected before any continues.
    group.share(&[])?;
    Ok(group)
}
