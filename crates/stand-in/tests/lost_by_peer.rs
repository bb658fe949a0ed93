//! A kernel that writes memory of a device that it may not access.

mod rig;

use rig::*;

#[test]
fn memory_of_another_device_is_out_of_reach_at_first() {
    let rig = Rig::new();
    let poke = rig.function(&FAULT, c"poke");
    // SAFETY: the call takes no pointer.
    ok(unsafe { (rig.driver.cuCtxSetCurrent)(rig.contexts[1]) });
    let theirs = rig.memory(64);
    // SAFETY: the call takes no pointer.
    ok(unsafe { (rig.driver.cuCtxSetCurrent)(rig.contexts[0]) });
    let stream = rig.stream();
    ok(rig.launch(poke, &[theirs, 1], stream));
    assert_eq!(rig.synchronize(stream), 700);
}
