local SUSPECT, DEAD = 2, 3  -- crashes after which a job must run alone, and is given up
